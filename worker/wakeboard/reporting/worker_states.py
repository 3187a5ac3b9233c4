"""The state of each worker in one word, as SQL for pages and terminals.

A worker that takes work is *claiming*. One that is heard and claims nothing new is draining or stopping, in
both cases *leaving*.
"""

from __future__ import annotations

from typing import NamedTuple

from wakeboard.core.leases import is_alive, is_held_by, is_stopping
from wakeboard.core.time.clock_skew import is_since


class WorkerState(NamedTuple):
    """The name of a state, and what it means."""

    name: str
    meaning: str


# In the order in which they are listed.
STATES = (
    WorkerState("silent", "it missed two heartbeats: dead, hanging, or cut off"),
    WorkerState("stopping", "it lets what it runs end, and leaves"),
    WorkerState("draining", "it was asked to claim nothing new"),
    WorkerState("busy", "it runs something"),
    WorkerState("idle", "it waits for work"),
    WorkerState("stopped", "it left in good order"),
    WorkerState("gone", "silent for over a day: it ended without a word"),
)
NAMES = tuple(state.name for state in STATES)
# Lists leave out workers that stopped longer ago: ticks alone make one each minute.
RECENT_SECONDS = 3600
# A worker that is silent for so long is gone; its runs were taken over within a minute.
GONE_SECONDS = 86_400


def is_claiming(worker: str, margin_seconds: int = 0) -> str:
    """Return the SQL of whether a worker takes new work: it is heard, and neither drains nor stops.

    ``worker`` is the name of its row in the query, ``margin_seconds`` that of ``is_alive``.
    """
    return f"({is_alive(worker, margin_seconds)} AND NOT {_is_stopping_or_draining(worker)})"


def runs_type(worker: str, job_type: str) -> str:
    """Return the SQL of whether a worker may run a type; ``job_type`` is the SQL of its name."""
    return f"({job_type} = ANY ({worker}.job_types))"


def runs_any_of(worker: str, job_types: str) -> str:
    """Return the SQL of whether a worker may run any of the types of ``job_types``, a text[]."""
    return f"({worker}.job_types && {job_types})"


def types_of(worker: str) -> str:
    """Return the SQL of the types that a worker may run, a row each: for a set that is read once."""
    return f"unnest({worker}.job_types)"


def is_leaving(worker: str) -> str:
    """Return the SQL of whether a worker is heard and takes nothing new: it drains or stops."""
    return f"({is_alive(worker)} AND {_is_stopping_or_draining(worker)})"


def is_draining(worker: str) -> str:
    """Return the SQL of whether a worker drains and does not stop: undrained, it would claim."""
    return f"({is_alive(worker)} AND {_is_drain_requested(worker)} AND NOT {is_stopping(worker)})"


def is_finishing(run: str) -> str:
    """Return the SQL of whether the worker of a running run takes nothing new."""
    return f"({is_held_by(run, is_leaving('holder'))} IS TRUE)"


def _is_drain_requested(worker: str) -> str:
    return f"({worker}.drain_requested_at IS NOT NULL)"


def _is_stopping_or_draining(worker: str) -> str:
    return f"({is_stopping(worker)} OR {_is_drain_requested(worker)})"


def rank(worker: str) -> str:
    """Return the SQL of a worker's place among STATES; ``worker`` is the name of its row in the query."""
    rules = (
        ("stopped", f"{worker}.stopped_at IS NOT NULL"),
        ("gone", f"{worker}.seen_at < now() - make_interval(secs => {GONE_SECONDS})"),
        ("silent", f"NOT {is_alive(worker)}"),
        ("stopping", is_stopping(worker)),
        ("draining", _is_drain_requested(worker)),
        ("busy", f"{worker}.running > 0"),
    )
    cases = " ".join(f"WHEN {condition} THEN {NAMES.index(name)}" for name, condition in rules)
    return f"(CASE {cases} ELSE {NAMES.index('idle')} END)"


def is_recent(worker: str) -> str:
    """Return the SQL of whether a worker is not stopped, or stopped less than RECENT_SECONDS ago."""
    return f"({worker}.stopped_at IS NULL OR {is_since(f'{worker}.stopped_at', RECENT_SECONDS)})"
