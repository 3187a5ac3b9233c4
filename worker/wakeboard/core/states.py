"""The one table of states, moves, verbs, roles and permissions.

The SQL guards, the buttons, the command line, the tests and the README all read here what may happen. This
module imports no other of Wakeboard and knows no database.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """What a run is right now. The values are those of ``job_runs.status``."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    """How an attempt ended. The values are those of ``job_attempts.outcome``."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    RELEASED = "released"


class Role(StrEnum):
    """What a person or token may do; a later role may do all that an earlier one may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def with_article(self) -> str:
        """Its name with the article: ``a viewer``, ``an operator``."""
        return f"{'an' if self[0] in 'aeiou' else 'a'} {self}"

    def covers(self, needed: Role) -> bool:
        """Return whether this role may do what ``needed`` may do."""
        return _RANKS[self] >= _RANKS[needed]


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class State:
    """A state in words: what it means and what takes a run out of it."""

    status: Status
    meaning: str
    leaves_by: str


STATES: tuple[State, ...] = (
    State(Status.QUEUED, "waits for its time or for a free worker", "claim, cancel"),
    State(
        Status.RUNNING, "a worker holds its lease and runs it", "succeed, fail, release, reap, cancel (asked)"
    ),
    State(Status.SUCCEEDED, "ended well", "– (run again makes a new run)"),
    State(Status.FAILED, "failed, will be tried again at run_at", "claim, retry now, cancel"),
    State(Status.DEAD, "failed and gave up: a person decides", "retry now, cancel"),
    State(Status.CANCELLED, "a person decided against it", "retry now"),
)

CLAIMABLE = (Status.QUEUED, Status.FAILED)
ENDED = (Status.SUCCEEDED, Status.DEAD, Status.CANCELLED)
UNDER_WAY = (Status.QUEUED, Status.RUNNING, Status.FAILED)
# Has failed: is tried again, or was given up.
FAILING = (Status.FAILED, Status.DEAD)
# A cancel of these is done at once: they wait to run, or for a person.
CANCELLABLE = (*CLAIMABLE, Status.DEAD)
FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST)
# The error codes of a run whose claim the database refuses, and of one whose end it refuses.
CLAIM_REFUSED, FINISH_REFUSED = "claim_refused", "finish_refused"


@dataclass(frozen=True, slots=True)
class Move:
    """One move of a run: who makes it, from where, to where (several when the row decides)."""

    name: str
    by: str
    sources: tuple[Status, ...]
    targets: tuple[Status, ...]


MOVES: dict[str, Move] = {
    move.name: move
    for move in (
        Move("enqueue", "anyone", (), (Status.QUEUED,)),
        Move("claim", "worker", CLAIMABLE, (Status.RUNNING,)),
        Move("renew", "worker", (Status.RUNNING,), (Status.RUNNING,)),
        Move("succeed", "worker", (Status.RUNNING,), (Status.SUCCEEDED,)),
        Move("fail", "worker", (Status.RUNNING,), (Status.FAILED, Status.DEAD, Status.CANCELLED)),
        Move("release", "worker", (Status.RUNNING,), (Status.QUEUED, Status.CANCELLED)),
        Move("reap", "worker", (Status.RUNNING,), (Status.FAILED, Status.DEAD, Status.CANCELLED)),
        Move(
            "cancel",
            "operator",
            (*CANCELLABLE, Status.RUNNING),
            (Status.CANCELLED, Status.RUNNING),
        ),
        Move(
            "retry_now",
            "operator",
            (Status.FAILED, Status.QUEUED, Status.DEAD, Status.CANCELLED),
            (Status.QUEUED, Status.FAILED),
        ),
        Move(
            "release_lease",
            "operator",
            (Status.RUNNING,),
            (Status.FAILED, Status.DEAD, Status.CANCELLED),
        ),
        Move("run_again", "operator", ENDED, (Status.QUEUED,)),
    )
}


@dataclass(frozen=True, slots=True)
class Verb:
    """What a person may ask for: its name in URLs, the words on its button, and the role it needs.

    ``action`` is the name in the audit log: the noun, a dot, what is done. ``is_destructive`` verbs ask for
    confirmation first.
    """

    name: str
    action: str
    label: str
    role: Role
    move: str | None = None
    is_destructive: bool = False

    @property
    def noun(self) -> str:
        """The kind of thing that it acts on, as the audit log's ``target_type`` has it: run, schedule …"""
        return self.action.partition(".")[0]


VERBS: dict[str, Verb] = {
    verb.action: verb
    for verb in (
        Verb("retry", "run.retry", "Retry", Role.OPERATOR, "retry_now"),
        Verb("cancel", "run.cancel", "Cancel", Role.OPERATOR, "cancel", is_destructive=True),
        Verb("again", "run.again", "Run again", Role.OPERATOR, "run_again"),
        Verb(
            "release", "lease.release", "Release lease", Role.OPERATOR, "release_lease", is_destructive=True
        ),
        Verb("run", "schedule.run", "Run now", Role.OPERATOR),
        Verb("pause", "schedule.pause", "Pause", Role.OPERATOR),
        Verb("resume", "schedule.resume", "Resume", Role.OPERATOR),
        Verb("edit", "schedule.edit", "Edit", Role.ADMIN),
        Verb("remove", "schedule.remove", "Remove", Role.ADMIN, is_destructive=True),
        Verb("pause", "type.pause", "Pause", Role.OPERATOR),
        Verb("resume", "type.resume", "Resume", Role.OPERATOR),
        Verb("pause-all", "type.hold", "Pause all", Role.OPERATOR),
        Verb("resume-all", "type.let_go", "Resume all", Role.OPERATOR),
        Verb("limit", "type.limit", "Limit", Role.OPERATOR),
        Verb("keep", "type.keep", "Set retention", Role.ADMIN),
        Verb("drain", "worker.drain", "Drain", Role.OPERATOR),
        Verb("undrain", "worker.undrain", "Undrain", Role.OPERATOR),
        Verb("stop", "worker.stop", "Stop", Role.ADMIN, is_destructive=True),
        Verb("settle", "effect.settle", "Settle", Role.OPERATOR),
        Verb("mute", "error.mute", "Mute", Role.OPERATOR),
        Verb("unmute", "error.unmute", "Unmute", Role.OPERATOR),
        Verb("retry", "error.retry", "Retry this group", Role.OPERATOR),
        Verb("edit", "alert.edit", "Edit", Role.ADMIN),
        Verb("test", "alert.test", "Send a test", Role.OPERATOR),
        Verb("silence", "alert.silence", "Silence", Role.OPERATOR),
        Verb("enqueue", "run.enqueue", "Enqueue", Role.OPERATOR),
        Verb("save", "view.save", "Save view", Role.OPERATOR),
        Verb("remove", "view.remove", "Remove view", Role.OPERATOR, is_destructive=True),
        Verb("start", "operation.start", "Start operation", Role.OPERATOR),
        Verb("pause", "operation.pause", "Pause", Role.OPERATOR),
        Verb("resume", "operation.resume", "Resume", Role.OPERATOR),
        Verb("abort", "operation.abort", "Abort", Role.OPERATOR, is_destructive=True),
        Verb("user", "user.change", "Change user", Role.ADMIN),
        Verb("token", "token.change", "Change token", Role.ADMIN),
    )
}


def is_allowed(verb: Verb, status: Status) -> bool:
    """Return whether ``verb`` has a move that leaves from ``status`` (verbs without a move: always)."""
    return verb.move is None or status in MOVES[verb.move].sources


def sql_list(values: tuple[StrEnum, ...]) -> str:
    """Return ``'queued', 'failed'`` for a SQL ``IN (…)``; the values are constants of this module."""
    return ", ".join(f"'{value.value}'" for value in values)
