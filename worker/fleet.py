"""Who works: how each worker stands, in one word, for pages and terminals. Plain SQL, for both ask it."""

from __future__ import annotations

from typing import NamedTuple

from worker.leases import is_heard


class State(NamedTuple):
    """A word for how a worker stands, and what it means."""

    name: str
    meaning: str


# In the order in which they are listed.
STATES = (
    State("silent", "it missed two heartbeats: dead, hanging, or cut off"),
    State("stopping", "it lets what it runs end, and leaves"),
    State("draining", "it was asked to claim nothing new"),
    State("busy", "it runs something"),
    State("idle", "it waits for work"),
    State("stopped", "it left in good order"),
    State("gone", "silent for over a day: it ended without a word"),
)
NAMES = tuple(state.name for state in STATES)
# Unless asked for, workers that stopped longer ago are left out: ticks alone make one each minute.
RECENT_SECONDS = 3600
# Who fell silent so long ago has ended without a word; its runs were taken over within a minute.
GONE_SECONDS = 86_400


def rank(worker: str) -> str:
    """Return the SQL of a worker's place among STATES; ``worker`` is the name of its row in the query."""
    rules = (
        ("stopped", f"{worker}.stopped_at IS NOT NULL"),
        ("gone", f"{worker}.seen_at < now() - make_interval(secs => {GONE_SECONDS})"),
        ("silent", f"NOT {is_heard(worker)}"),
        ("stopping", f"{worker}.stopping_at IS NOT NULL OR {worker}.stop_requested_at IS NOT NULL"),
        ("draining", f"{worker}.drain_requested_at IS NOT NULL"),
        ("busy", f"{worker}.running > 0"),
    )
    cases = " ".join(f"WHEN {condition} THEN {NAMES.index(name)}" for name, condition in rules)
    return f"(CASE {cases} ELSE {NAMES.index('idle')} END)"


def is_recent(worker: str) -> str:
    """Return the SQL that says whether a worker is there, or stopped less than RECENT_SECONDS ago."""
    lately = f"{worker}.stopped_at >= now() - make_interval(secs => {RECENT_SECONDS})"
    return f"({worker}.stopped_at IS NULL OR {lately})"
