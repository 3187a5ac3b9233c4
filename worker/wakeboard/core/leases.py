"""The states of the lease of a running run: their words, and the SQL that finds them. Opens no connection.

The command line, the pages and their JSON twins all read them here, so that they cannot disagree. The SQL
speaks of a run ``r``, its type ``t`` and its worker ``w`` (type and worker may be missing: outer joins).
"""

from __future__ import annotations

from dataclasses import dataclass

from wakeboard.core.time.clock_skew import is_since


@dataclass(frozen=True, slots=True)
class LeaseState:
    """One state: its name in filters and JSON, its words on a page, what it means.

    ``is_in_danger``: the run may be taken from its worker.
    """

    name: str
    title: str
    meaning: str
    is_in_danger: bool = False


# In the order in which they are listed: what needs a person comes first.
STATES: tuple[LeaseState, ...] = (
    LeaseState(
        "ended", "lease ended", "nobody renewed it in time: the next worker that looks takes it over", True
    ),
    LeaseState(
        "silent",
        "worker silent",
        "its worker was not heard for two heartbeats: it is taken over when its lease ends, or by Release",
        True,
    ),
    LeaseState("cancelling", "cancel asked", "its worker is alive and was told to stop it"),
    LeaseState(
        "stopping", "worker stopping", "its worker ends soon, and gives back what has not ended by then"
    ),
    LeaseState("renewed", "renewed", "its worker is alive and renews the lease at every heartbeat"),
)
NAMES = tuple(state.name for state in STATES)


def is_alive(worker: str, margin_seconds: int = 0) -> str:
    """Return the SQL that says whether a worker is alive; ``worker`` is the name of its row in the query.

    It is alive until it misses two heartbeats; from then on it is silent, and operators may take its leases.
    ``margin_seconds`` is added for callers who must be surer that it is silent. A heartbeat in the future
    counts as none.
    """
    margin = f" + {margin_seconds}" if margin_seconds else ""
    has_heartbeat = is_since(f"{worker}.seen_at", f"2 * {worker}.heartbeat_seconds{margin}")
    return f"({worker}.stopped_at IS NULL AND {has_heartbeat})"


def is_stopping(worker: str) -> str:
    """Return the SQL that says whether a worker is about to stop; ``worker`` as above."""
    return f"({worker}.stopping_at IS NOT NULL OR {worker}.stop_requested_at IS NOT NULL)"


def is_ended(run: str) -> str:
    """Return the SQL that says whether the lease of a running run has ended; ``run`` as in ``is_stuck``."""
    return f"({run}.locked_until < now())"


def is_silent(run: str) -> str:
    """Return the SQL that says whether no live worker holds a running run."""
    return f"({is_held_by(run, is_alive('holder'))} IS NOT TRUE)"


def is_held_by(run: str, holders: str) -> str:
    """Return the SQL that says whether the run's worker is a ``holder`` for which ``holders`` is true.

    The workers are found once and not for each run: PostgreSQL hashes the result of such a subquery. NULL
    where the run has no worker.
    """
    return f"({run}.locked_by IN (SELECT holder.id FROM wakeboard.workers AS holder WHERE {holders}))"


def is_stuck(run: str) -> str:
    """Return the SQL that says whether a running run is stuck; ``run`` is the name of its row in the query.

    Its lease has ended or its worker is silent, the states ``is_in_danger``: every number, badge and JSON
    twin that says stuck means this.
    """
    return f"({is_ended(run)} OR {is_silent(run)})"


IS_ALIVE = is_alive("w")

# The index of its state in STATES.
RANK = f"""CASE
    WHEN {is_ended("r")} THEN 0
    WHEN {IS_ALIVE} IS NOT TRUE THEN 1
    WHEN r.cancel_requested_at IS NOT NULL THEN 2
    WHEN {is_stopping("w")} THEN 3
    ELSE 4 END"""
STATE = f"(ARRAY{list(NAMES)!r})[1 + {RANK}]"

# How long a renewal holds: the longer of the type's lease and the worker's. A worker of an earlier version
# publishes none; a lease is by default three heartbeats long.
SECONDS = "coalesce(greatest(t.lease_seconds, w.lease_seconds), 3 * w.heartbeat_seconds, 30)"
_RENEWED_AT = f"(r.locked_until - make_interval(secs => {SECONDS}))"
# NULL when that would lie ahead: the worker's own lease is longer than anybody has published.
RENEWED_AT = f"CASE WHEN {_RENEWED_AT} <= now() + interval '1 second' THEN {_RENEWED_AT} END"

# Every worker looks for ended leases this often, or each heartbeat (a third of a lease) when that is less.
REAP_SECONDS = 2.0
TAKEOVER_AT = f"r.locked_until + make_interval(secs => least({REAP_SECONDS}, {SECONDS} / 3))"

# Who could take it over now: live workers other than the one that holds it.
TAKERS = f"""(SELECT count(*) FROM wakeboard.workers AS o
    WHERE o.id IS DISTINCT FROM r.locked_by AND {is_alive("o")})"""


def takeover(state: str, takers: int) -> str | None:
    """Return who takes a lease over, in a sentence; None for states in which nobody is about to.

    ``takers``: how many other workers are alive.
    """
    if state not in ("ended", "silent"):
        return None
    if takers == 0:
        return "No other worker is alive: start one, it takes over what has ended."
    who = "The other live worker" if takers == 1 else f"The first of {takers} other live workers"
    return f"{who} takes it over, as a lost attempt."
