"""Raw SQL: the worker's own statements and settings, driven by a plain loop on one connection.

    python -m benchmarks.throughput raw URL [WAY [BATCH [TYPES]]]

Drains what is due of the types and waits for what is due later. WAY says what is done with a batch: ``plain``
finishes it; ``limited`` claims under the type's limit and finishes it; ``joined`` and ``limited_joined`` do
the same, but each finish and the claim that follows are one commit; ``mixed`` sleeps as the handlers of
``mixed_app`` do; ``once``, ``transaction`` and ``failure`` write what a run of ``effects_app`` must commit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import perf_counter, sleep
from typing import NamedTuple

import psycopg

from benchmarks import bench
from wakeboard.core.errors.error_groups import group_of
from wakeboard.database.db import PLANNING, configure
from wakeboard.queue import effect_store
from wakeboard.queue.effect_store import Holder
from wakeboard.queue.engine import claims, endings
from wakeboard.runtime.loop.channel import Rows
from wakeboard.runtime.loop.claim_batch import windows
from wakeboard.runtime.loop.claim_cursor import ClaimCursor

BATCH = 100
LEASE_SECONDS = 30.0
PAUSE_SECONDS = 0.002
NOOP = ("noop",)
# What a run of ``mixed_app`` takes, in seconds: nine of ten types are quick.
QUICK_SECONDS, SLOW_SECONDS = 0.001, 0.2
LEFT = """SELECT 1 FROM wakeboard.job_runs
WHERE job_type = ANY($1::text[]) AND status IN ('queued', 'failed') LIMIT 1"""
CODE, MESSAGE = "refused", "The card was refused."
# As long as what a real worker keeps of the same failure.
TRACEBACK = f"""Traceback (most recent call last):
  File "/srv/shop/handlers/effects_app.py", line 30, in failure
    raise Permanent("{CODE}", "{MESSAGE}")
Permanent: {MESSAGE}
"""


class Run(NamedTuple):
    """A run that was claimed."""

    run_id: int
    epoch: int
    attempt: int
    job_type: str


def command(url: str, way: str = "plain", batch: int = BATCH, types: Sequence[str] = NOOP) -> list[str]:
    """Return the command of one connection."""
    return [sys.executable, "-m", "benchmarks.throughput", "raw", url, way, str(batch), ",".join(types)]


def is_slow(job_type: str) -> bool:
    """Return whether a type of ``mixed_app`` is a slow one: one of ten is."""
    return job_type.endswith("9")


class RawWorker:
    """One connection that claims up to ``batch`` runs of ``types`` and finishes them."""

    def __init__(self, connection: psycopg.Connection, batch: int, types: Sequence[str]) -> None:
        configure(connection, PLANNING)
        self.connection = connection
        self.me = f"raw {connection.info.backend_pid}"
        self.types = list(types)
        self._batch = batch
        self._cursor = psycopg.RawCursor(connection)
        self._claim_cursor, self._rounds, self._has_failed = ClaimCursor(), 0, False

    def ask(self, statement: str, values: Sequence[object]) -> Rows:
        """Send a prepared statement and return its rows."""
        return self._cursor.execute(statement.encode(), values, prepare=True).fetchall()

    def claimed(self) -> list[Run]:
        """Claim as the worker does where nothing is limited; empty when nothing is due."""
        self._rounds += 1
        for some in windows(self.types, self._rounds):
            values = (some, self.me, LEASE_SECONDS)
            for places in self._claim_cursor.starts(some, self._batch):
                statement = claims.claim(self._batch, past_locks=places.past_locks)
                rows = self.ask(statement, (*values, *map(list, places.values)))
                self._claim_cursor.advance(rows, self._batch)
                if rows:
                    return _runs(rows)
            statement = claims.claim(self._batch, past_locks=True)
            if rows := self.ask(statement, (*values, *claims.FROM_FIRST)):
                self._claim_cursor.skip_locked()
                return _runs(rows)
        return []

    def claimed_under_limit(self) -> list[Run]:
        """Claim as the worker does from the one type, which has a limit; to be called in a transaction."""
        (name,) = self.types
        self.ask(claims.LOCK_LIMIT, (name,))
        return _runs(self.ask(claims.claim_limited(self._batch), (name, self.me, LEASE_SECONDS)))

    def is_left(self) -> bool:
        """Return whether anything waits, be it due or not."""
        return bool(self.ask(LEFT, (self.types,)))

    def succeed(self, runs: Sequence[Run], took: Sequence[float] = ()) -> None:
        """Finish runs, each of which took so many seconds."""
        seconds = dict(zip(runs, took or [0.0] * len(runs), strict=True))

        def values(held: Sequence[Run]) -> Sequence[object]:
            n = len(held)
            texts = [None] * n
            return ([0.0] * n, [seconds[run] for run in held], texts, texts, texts, *_rules(n))

        self._end(endings.SUCCEED, runs, values)

    def fail(self, runs: Sequence[Run]) -> None:
        """Fail runs of one type for good; the first time with the words of their group, as the worker."""
        group = group_of(runs[0].job_type, CODE, MESSAGE, TRACEBACK)
        is_first, self._has_failed = not self._has_failed, True

        def values(held: Sequence[Run]) -> Sequence[object]:
            n = len(held)
            zeros, none = [0.0] * n, [None] * n
            words_of_group = ([group.template] * n, [group.frame] * n) if is_first else (none, none)
            words = (["failed"] * n, [CODE] * n, [MESSAGE] * n, [True] * n, zeros, [TRACEBACK] * n)
            return (zeros, zeros, *words, none, none, *_rules(n), [group.id] * n, *words_of_group)

        self._end(endings.FAIL, runs, values)

    def _end(
        self, statement: str, runs: Sequence[Run], values: Callable[[Sequence[Run]], Sequence[object]]
    ) -> None:
        """Write the end of runs. What another's claim has locked for a moment is left out, and sent again."""
        held = list(runs)
        while held:
            ids, epochs = [run.run_id for run in held], [run.epoch for run in held]
            done = {row[0] for row in self.ask(statement, (self.me, ids, epochs, *values(held)))}
            held = [run for run in held if run.run_id not in done]


def _runs(rows: Rows) -> list[Run]:
    return [Run(row[0], row[1], row[2], row[4]) for row in rows]


def _rules(count: int) -> tuple[list[int], list[float]]:
    """Return the most attempts and the timeout of so many runs."""
    return [10] * count, [300.0] * count


def _mixed(raw: RawWorker, runs: Sequence[Run]) -> None:
    took = []
    for run in runs:
        began = perf_counter()
        sleep(SLOW_SECONDS if is_slow(run.job_type) else QUICK_SECONDS)
        took.append(perf_counter() - began)
    raw.succeed(runs, took)


def _once(raw: RawWorker, runs: Sequence[Run]) -> None:
    for run in runs:
        holder = Holder(run.run_id, run.attempt, run.epoch, raw.me)
        entry = effect_store.start(raw.connection, holder, f"run:{run.run_id}", "mail")
        assert entry is not None and effect_store.finish(raw.connection, holder, entry, "null")
    raw.succeed(runs)


def _transaction(raw: RawWorker, runs: Sequence[Run]) -> None:
    for run in runs:
        with raw.connection.transaction():
            raw.connection.execute("INSERT INTO public.written (run_id) VALUES (%s)", (run.run_id,))
            raw.succeed([run])


def _failure(raw: RawWorker, runs: Sequence[Run]) -> None:
    raw.fail(runs)


# What is done with what was claimed; the others join a claim to a finish.
WAYS: dict[str, Callable[[RawWorker, Sequence[Run]], None]] = {
    "plain": RawWorker.succeed, "limited": RawWorker.succeed, "mixed": _mixed, "once": _once,
    "transaction": _transaction, "failure": _failure,
}  # fmt: skip


def drain(raw: RawWorker, way: str) -> None:
    """Claim and do what is to be done, each a commit, until nothing waits any more."""
    while True:
        # Of one type under its limit two statements are one claim.
        with raw.connection.transaction() if way == "limited" else nullcontext():
            runs = raw.claimed_under_limit() if way == "limited" else raw.claimed()
        if runs:
            WAYS[way](raw, runs)
        elif raw.is_left():
            sleep(PAUSE_SECONDS)
        else:
            return


def drain_joined(raw: RawWorker, claim: Callable[[], list[Run]]) -> None:
    """Finish what was claimed and claim the next in one commit, until nothing waits any more."""
    runs: list[Run] = []
    while runs or raw.is_left():
        with raw.connection.transaction():
            if runs:
                raw.succeed(runs)
            runs = claim()


def main(url: str, way: str = "plain", batch: str = str(BATCH), types: str = "noop") -> None:
    """Drain. Printed are the seconds of CPU that the server's process of this session had meanwhile."""
    with bench.session(url) as connection:
        raw = RawWorker(connection, int(batch), types.split(","))
        if way == "joined":
            drain_joined(raw, raw.claimed)
        elif way == "limited_joined":
            drain_joined(raw, raw.claimed_under_limit)
        else:
            drain(raw, way)
        print(bench.cpu_seconds([connection.info.backend_pid]))
