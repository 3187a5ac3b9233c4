"""A look at a pool's whiteboard: its numbers, and what runs. Changes nothing."""

from __future__ import annotations

from wakeboard.handlers.pool.metrics import PoolMetrics, Running
from wakeboard.handlers.pool.state import Board


def look(board: Board) -> list[Running]:
    """Return every handler under way. The caller holds the board's lock."""
    return [
        Running(each.ticket.id, each.ticket.job_type, each.number, each.seconds, given_up)
        for given_up, attempts in ((False, board.running), (True, board.given_up))
        for each in attempts.values()
    ]


def measure(board: Board, concurrency: int, capacity: int, threads: int) -> PoolMetrics:
    """Return the numbers of a pool of that size with so many threads."""
    with board.lock:
        tally, ended = board.tally, board.tally.ended
        return PoolMetrics(
            accepting=board.is_open,
            concurrency=concurrency,
            capacity=capacity,
            queue_length=len(board.waiting),
            retrying=board.waiting.later,
            in_flight=len(board.running),
            saturation=len(board.running) / concurrency,
            threads_alive=threads,
            blocked_submitters=board.blocked,
            abandoned=len(board.given_up),
            longest_running_seconds=max((each.seconds for each in look(board)), default=0.0),
            submitted_total=tally.submitted,
            started_total=tally.started,
            succeeded_total=ended["succeeded"],
            failed_total=tally.failed,
            retried_total=tally.retried,
            dead_total=ended["dead"],
            cancelled_total=ended["cancelled"],
            dropped_total=ended["dropped"],
            handed_off_total=ended["handed_off"],
            refused_total=tally.refused,
            blocked_total=tally.blocked,
            abandoned_total=tally.abandoned,
            late_total=tally.late,
            latency_average_seconds=tally.latency.average_seconds,
            latency_maximum_seconds=tally.latency.maximum_seconds,
            wait_average_seconds=tally.wait.average_seconds,
            wait_maximum_seconds=tally.wait.maximum_seconds,
            run_average_seconds=tally.run.average_seconds,
            run_maximum_seconds=tally.run.maximum_seconds,
        )
