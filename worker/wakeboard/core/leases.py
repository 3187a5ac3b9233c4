"""How the lease of a running run stands: in words, and in the SQL that says so. Opens no connection.

The command line, the pages and their twins all ask here, so that they cannot disagree. The SQL speaks of a
run ``r``, its type ``t`` and its worker ``w`` (each of the latter two may be missing: outer joins).
"""

from __future__ import annotations

from dataclasses import dataclass

from wakeboard.core.time.clock_skew import is_since


@dataclass(frozen=True, slots=True)
class LeaseState:
    """One state: its name in filters and JSON, its words on a page, what it means.

    ``in_danger``: the run may be taken from its worker.
    """

    name: str
    title: str
    meaning: str
    in_danger: bool = False


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


def is_heard(worker: str, margin_seconds: int = 0) -> str:
    """Return the SQL that says whether a worker is heard; ``worker`` is the name of its row in the query.

    It is heard until it misses two heartbeats; from then on operators may take its leases. Who must be surer
    that it is silent says by how many seconds: ``margin_seconds``. A heartbeat that lies ahead is not heard.
    """
    margin = f" + {margin_seconds}" if margin_seconds else ""
    is_lately = is_since(f"{worker}.seen_at", f"2 * {worker}.heartbeat_seconds{margin}")
    return f"({worker}.stopped_at IS NULL AND {is_lately})"


def is_stopping(worker: str) -> str:
    """Return the SQL that says whether a worker was told to stop, by whomever; ``worker`` as above."""
    return f"({worker}.stopping_at IS NOT NULL OR {worker}.stop_requested_at IS NOT NULL)"


def is_ended(run: str) -> str:
    """Return the SQL that says whether the lease of a running run has ended; ``run`` as in ``is_stuck``."""
    return f"({run}.locked_until < now())"


def is_silent(run: str) -> str:
    """Return the SQL that says whether nobody is heard to work at a running run."""
    return f"({is_held_by(run, is_heard('holder'))} IS NOT TRUE)"


def is_held_by(run: str, holders: str) -> str:
    """Return the SQL that says whether one of the workers ``holder`` of whom ``holders`` is true has the run.

    Who they are is found once, and not for each run: PostgreSQL keeps the answer of such a question hashed.
    NULL where the run has no worker.
    """
    return f"({run}.locked_by IN (SELECT holder.id FROM wakeboard.workers AS holder WHERE {holders}))"


def is_stuck(run: str) -> str:
    """Return the SQL that says whether a running run is stuck; ``run`` is the name of its row in the query.

    Its lease has ended or its worker is silent, the states ``in_danger``: every number, badge and twin that
    says stuck means this.
    """
    return f"({is_ended(run)} OR {is_silent(run)})"


IS_HEARD = is_heard("w")

# Its place in STATES.
RANK = f"""CASE
    WHEN {is_ended("r")} THEN 0
    WHEN {IS_HEARD} IS NOT TRUE THEN 1
    WHEN r.cancel_requested_at IS NOT NULL THEN 2
    WHEN {is_stopping("w")} THEN 3
    ELSE 4 END"""
STATE = f"(ARRAY{list(NAMES)!r})[1 + {RANK}]"

# How long a renewal holds: the longer of the type's lease and the worker's. A worker of an earlier version
# does not say; a lease is by default three heartbeats long.
SECONDS = "coalesce(greatest(t.lease_seconds, w.lease_seconds), 3 * w.heartbeat_seconds, 30)"
_RENEWED_AT = f"(r.locked_until - make_interval(secs => {SECONDS}))"
# NULL when that would lie ahead: the worker's own lease is longer than anybody has published.
RENEWED_AT = f"CASE WHEN {_RENEWED_AT} <= now() + interval '1 second' THEN {_RENEWED_AT} END"

# Every worker looks for ended leases this often, or each heartbeat (a third of a lease) when that is less.
REAP_SECONDS = 2.0
TAKEOVER_AT = f"r.locked_until + make_interval(secs => least({REAP_SECONDS}, {SECONDS} / 3))"

# Who could take it over now: live workers other than the one that holds it.
TAKERS = f"""(SELECT count(*) FROM wakeboard.workers AS o
    WHERE o.id IS DISTINCT FROM r.locked_by AND {is_heard("o")})"""


def takeover(state: str, takers: int) -> str | None:
    """Return who takes a lease over, in a sentence; None for states in which nobody is about to.

    ``takers``: how many other workers are alive.
    """
    if state not in ("ended", "silent"):
        return None
    if takers == 0:
        return "No other worker is alive: start one, it takes over what has ended."
    others = (
        "The other live worker takes" if takers == 1 else f"The first of {takers} other live workers takes"
    )
    return f"{others} it over, as a lost attempt."
