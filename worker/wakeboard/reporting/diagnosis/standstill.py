"""Why no run of a job type starts: the type is paused, its limit is 0, or no worker takes it.

The SQL and its words, so that pages and answers say the same.
"""

from __future__ import annotations

from typing import NamedTuple

from wakeboard.core.builtin_payloads import command_user
from wakeboard.core.time.clock_skew import is_since
from wakeboard.reporting import worker_states
from wakeboard.reporting.heartbeats import SILENCE_SECONDS


class StandstillWords(NamedTuple):
    """A standstill in a word or two, as a clause (``{}`` is the type), and what the runs wait for."""

    short: str
    clause: str
    until: str


# By the value of ``standstill``.
WORDS = {
    "paused": StandstillWords("type paused", "its type {} is paused", "until somebody resumes that"),
    "limit": StandstillWords("type limit 0", "the limit of its type {} is 0", "until somebody raises that"),
    "worker": StandstillWords("no worker", "no worker takes its type {}", "for one"),
}


def standstill(job_type: str) -> str:
    """Return the SQL of why no run of ``job_type`` (an expression) starts: a key of WORDS, NULL if one may.

    Each set is read once for all rows. Ticks come and go: one counts as a worker for SILENCE_SECONDS.
    """
    types = "SELECT t.name FROM wakeboard.job_types AS t"
    taken = f"SELECT {worker_states.types_of('w')} FROM wakeboard.workers AS w"
    ticked = f"w.is_tick AND {is_since('w.seen_at', SILENCE_SECONDS)}"
    return f"""CASE
        WHEN {job_type} IN ({types} WHERE t.paused_at IS NOT NULL) THEN 'paused'
        WHEN {job_type} IN ({types} WHERE coalesce(t.max_running_operator, t.max_running) = 0) THEN 'limit'
        WHEN {job_type} IN ({taken} WHERE {worker_states.is_claiming("w")}) THEN NULL
        WHEN {job_type} IN ({taken} WHERE {ticked}) THEN NULL
        ELSE 'worker' END"""


def standstill_clause(reason: str, job_type: str) -> str:
    """Return ``its type mail is paused`` for a ``reason`` that the SQL of ``standstill`` gave."""
    if reason == "worker" and (user := command_user(job_type)) is not None:
        return f"no worker runs commands as {user}"
    return WORDS[reason].clause.format(job_type)
