"""The answer to ``QUESTION`` in words: what a run waits for, and what stands in its way.

    for reason in waiting(connection, run_id)[1]:
        print(reason.say())

A page makes links and live times of the pieces; a terminal joins them. The words are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from string import Formatter
from typing import TYPE_CHECKING, Any

from wakeboard.core.builtin_payloads import command_user, no_worker_for
from wakeboard.core.states import CLAIM_REFUSED
from wakeboard.core.text.redaction import redact_text
from wakeboard.database.read import read_one
from wakeboard.reporting.diagnosis.question import CAP, QUESTION, RATE_MINUTES

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

Row = Mapping[str, Any]
COUNTS = ("running", "ahead", "workers", "slots", "busy", "draining", "others")
# The first words of what decides.
LEADS = {
    "paused": "Paused:",
    "worker": "Nobody to run it:",
    "limit": "May not run:",
    "slots": "Waits for a slot:",
    "ahead": "Waits in line:",
}


def utc(moment: datetime) -> str:
    """Return ``2026-11-21T02:14:00Z``: a time as machines read it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a sentence: ``text``, or a ``moment``.

    ``to`` names what it leads to: 'types', 'workers', 'running' and 'waiting' (runs of this type), 'busy'
    (runs of all). ``is_code``: a name from a program, such as an error's code.
    """

    text: str = ""
    moment: datetime | None = None
    to: str | None = None
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class Reason:
    """One sentence, called 'time', 'backoff', 'refused', 'due', 'paused', 'worker', 'limit', 'slots', 'ahead'
    or 'free'.

    ``lead`` are its first words, to be stressed where it is the first reason, which always has some."""

    name: str
    pieces: tuple[Piece, ...]
    lead: str = ""

    def say(self, moment: Callable[[datetime], str] = utc) -> str:
        """Return the sentence as text; ``moment`` writes a time."""
        parts = [moment(piece.moment) if piece.moment else piece.text for piece in self.pieces]
        return f"{self.lead} {''.join(parts)}" if self.lead else "".join(parts)


def waiting(connection: Connection, run_id: int) -> tuple[dict[str, int], list[Reason]]:
    """Return what stands before run ``run_id``, counted, and why it waits; both empty when it does not.

    Counted: ``running`` runs of its type now, ``ahead`` due runs of its type that are claimed first (both at
    most CAP + 1), ``workers`` alive that run its type and take work, their ``slots``, how many are ``busy``,
    ``draining`` workers that run it and would take it once they are undrained, ``others`` alive workers of
    any type.
    """
    row: Row | None = read_one(connection, QUESTION, dict, {"id": run_id})
    return ({}, []) if row is None else ({name: row[name] for name in COUNTS}, reasons(row))


def reasons(row: Row) -> list[Reason]:
    """Return why the run of ``row`` (of QUESTION) waits: what decides first, then all else in its way.

    Before its time nothing can start it. Once it is due, what keeps its whole type from starting comes before
    what only comes before it, and when it was due comes last.
    """
    if not row["is_due"]:
        return [_standing(row), *_closed(row)]
    obstacles = [*_closed(row), *_crowded(row)]
    if not obstacles:
        return [_standing(row), _reason("free", "Nothing is in its way: the next free worker takes it.")]
    first, *others = obstacles
    return [replace(first, lead=first.lead or LEADS[first.name]), *others, _due(row)]


def _standing(row: Row) -> Reason:
    """Return how a run stands by itself: when it is due, and after what."""
    if row["is_due"]:
        return replace(_due(row, "due"), lead="Waits for a worker:")
    if row["error_code"] == CLAIM_REFUSED:
        sentence = "a rule of its tables forbids that this run starts. It is tried again at {at}."
        return _reason("refused", sentence, "Refused by the database:", at=row["run_at"])
    if row["status"] == "failed":
        sentence = f"{_tried(row)}, next at {{at}}."
        return _reason("backoff", sentence, "Backing off", code=_code(row), at=row["run_at"])
    return _reason("time", f"due {{at}}.{_so_far(row)}", "Waits for its time:", at=row["run_at"])


def _due(row: Row, word: str = "Due") -> Reason:
    """Return since when a run is due, as a sentence of its own or (``word`` in lower case) behind a lead."""
    if row["status"] == "failed":
        return _reason("due", f"{word} {{at}}, {_tried(row)}.", code=_code(row), at=row["run_at"])
    return _reason("due", f"{word} {{at}}.{_so_far(row)}", at=row["run_at"])


def _tried(row: Row) -> str:
    count = "" if row["attempts"] == row["failures"] else f"{row['attempts']}, failure "
    return f"after attempt {count}{row['failures']} of {row['most_attempts']} ({{code}})"


def _so_far(row: Row) -> str:
    return f" {_many(row['failures'], 'failure')} so far." if row["failures"] else ""


def _code(row: Row) -> Piece:
    return Piece(row["error_code"] or "", is_code=True)


def _closed(row: Row) -> Iterator[Reason]:
    """Yield what keeps the whole type from starting: a pause, no worker, a full limit."""
    if row["paused_at"] is not None:
        end = ", at the latest at {end}" if row["paused_until"] else ""
        yield _reason(
            "paused",
            "Type {type} was paused by {who} at {at}{why}: "
            f"nothing of it starts until it is resumed{end}.",
            end=row["paused_until"] or "",
            type=Piece(row["job_type"], to="types"),
            who=row["paused_by"] or "somebody",
            at=row["paused_at"],
            why=f" (“{redact_text(row['paused_reason'])}”)" if row["paused_reason"] else "",
        )
    if not row["workers"]:
        yield _no_worker(row)
    if row["most_running"] == 0:
        yield _reason("limit", "The limit of its {type} is 0: none may run.", type=Piece("type", to="types"))
    elif row["most_running"] is not None and row["running"] >= row["most_running"]:
        yield _reason(
            "limit",
            "{full} allowed runs of this type are running. Change it on {types}.",
            "The limit is reached:",
            full=Piece(f"{row['running']} of {row['most_running']}", to="running"),
            types=Piece("Types", to="types"),
        )


def _no_worker(row: Row) -> Reason:
    user = command_user(row["job_type"])
    sentence = "No live worker runs this type. "
    if row["draining"]:
        one = row["draining"] == 1
        sentence = f"No worker takes runs of this type. {_number(row['draining'])} that could "
        sentence += "is draining: undrain it" if one else "are draining: undrain one"
        sentence += " on {workers}, or start another: {command}."
    elif user is not None:
        sentence = f"{no_worker_for(user)} See {{workers}}."
    elif row["others"]:
        alive = f"{_many(row['others'], 'worker')} {'is' if row['others'] == 1 else 'are'} alive"
        sentence += f"{alive}, for other types or on the way out: see {{workers}}."
    else:
        sentence += "No worker is alive at all; start one: {command}."
    if not row["is_known"] and user is None:
        sentence += " None has ever registered this type: is its name right?"
    command, workers = Piece("wakeboard worker", is_code=True), Piece("Workers", to="workers")
    return _reason("worker", sentence, command=command, workers=workers)


def _crowded(row: Row) -> Iterator[Reason]:
    """Yield what comes before a run that is due: busy slots, a queue."""
    if row["workers"] and row["busy"] >= row["slots"]:
        whose = f"{_many(row['slots'], 'slot')} of {_many(row['workers'], 'worker')}"
        yield _reason(
            "slots",
            "All {whose} for this type are busy: see what {now}.",
            whose=whose,
            now=Piece("runs now", to="busy"),
        )
    if row["ahead"]:
        count = (
            f"{CAP:,}+ due runs".replace(",", " ") if row["ahead"] > CAP else _many(row["ahead"], "due run")
        )
        comes = "comes" if row["ahead"] == 1 else "come"
        sentence = f"{count} of {{type}} {comes} before it{_expected(row)}."
        yield _reason("ahead", sentence, type=Piece("this type", to="waiting"))


def _expected(row: Row) -> str:
    """Return how long the queue before a run takes; nothing while its type does not start at all."""
    if not row["workers"] or row["paused_at"] is not None or row["most_running"] == 0:
        return ""
    if not row["ended"]:
        return f"; none of this type has ended in the last {RATE_MINUTES} minutes"
    seconds = row["ahead"] * row["ended_seconds"] / row["ended"]
    return f", {'more than' if row['ahead'] > CAP else 'about'} {_about(seconds)} at the present rate"


def _about(seconds: float) -> str:
    """Return a duration as a person guesses it: 40 s, 6 min, 5 h, 3 d."""
    for unit, size, most in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{max(1, round(seconds / size))} {unit}"
    return f"{round(seconds / 86_400)} d"


def _many(count: int, word: str) -> str:
    return f"{_number(count)} {word}{'' if count == 1 else 's'}"


def _number(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def _reason(name: str, sentence: str, lead: str = "", **values: str | datetime | Piece) -> Reason:
    """Return a reason whose ``{names}`` in ``sentence`` are pieces of their own."""
    pieces = []
    for text, key, _, _ in Formatter().parse(sentence):
        if text:
            pieces.append(Piece(text))
        if key is not None:
            pieces.append(_piece(values[key]))
    return Reason(name, tuple(pieces), lead)


def _piece(value: str | datetime | Piece) -> Piece:
    if isinstance(value, Piece):
        return value
    return Piece(moment=value) if isinstance(value, datetime) else Piece(value)
