"""Who works: how each worker stands, in one word, for pages and terminals. Plain SQL, for both ask it.

Who counts workers that take work asks ``is_claiming``; those that are heard and claim nothing new are
draining or stopping, and called leaving where it does not matter which.
"""

from __future__ import annotations

from typing import NamedTuple

from wakeboard.core.leases import is_alive, is_held_by, is_stopping
from wakeboard.core.time.clock_skew import is_since


class WorkerState(NamedTuple):
    """A word for how a worker stands, and what it means."""

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
# Unless asked for, workers that stopped longer ago are left out: ticks alone make one each minute.
RECENT_SECONDS = 3600
# Who fell silent so long ago has ended without a word; its runs were taken over within a minute.
GONE_SECONDS = 86_400


def is_claiming(worker: str, margin_seconds: int = 0) -> str:
    """Return the SQL that says whether a worker takes new work: it is heard, and was not told otherwise.

    ``worker`` is the name of its row in the query, ``margin_seconds`` that of ``is_alive``.
    """
    return f"({is_alive(worker, margin_seconds)} AND NOT {_is_told_not_to(worker)})"


def is_leaving(worker: str) -> str:
    """Return the SQL that says whether a worker is heard and takes nothing new: it drains or stops."""
    return f"({is_alive(worker)} AND {_is_told_not_to(worker)})"


def is_draining(worker: str) -> str:
    """Return the SQL that says whether a worker drains and does not stop: to undrain it lets it claim."""
    return f"({is_alive(worker)} AND {_is_told_to_drain(worker)} AND NOT {is_stopping(worker)})"


def is_finishing(run: str) -> str:
    """Return the SQL that says whether a running run is held by a worker that takes nothing new."""
    return f"({is_held_by(run, is_leaving('holder'))} IS TRUE)"


def _is_told_to_drain(worker: str) -> str:
    return f"({worker}.drain_requested_at IS NOT NULL)"


def _is_told_not_to(worker: str) -> str:
    return f"({is_stopping(worker)} OR {_is_told_to_drain(worker)})"


def rank(worker: str) -> str:
    """Return the SQL of a worker's place among STATES; ``worker`` is the name of its row in the query."""
    rules = (
        ("stopped", f"{worker}.stopped_at IS NOT NULL"),
        ("gone", f"{worker}.seen_at < now() - make_interval(secs => {GONE_SECONDS})"),
        ("silent", f"NOT {is_alive(worker)}"),
        ("stopping", is_stopping(worker)),
        ("draining", _is_told_to_drain(worker)),
        ("busy", f"{worker}.running > 0"),
    )
    cases = " ".join(f"WHEN {condition} THEN {NAMES.index(name)}" for name, condition in rules)
    return f"(CASE {cases} ELSE {NAMES.index('idle')} END)"


def is_recent(worker: str) -> str:
    """Return the SQL that says whether a worker is there, or stopped less than RECENT_SECONDS ago."""
    lately = is_since(f"{worker}.stopped_at", RECENT_SECONDS)
    return f"({worker}.stopped_at IS NULL OR {lately})"
