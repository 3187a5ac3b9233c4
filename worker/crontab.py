"""A crontab file → its lines, each taken as a definition or refused with the reason. Pure: opens no file.

    for line in parse_crontab(text, system=False, user="deploy", timezone="Europe/Paris"):
        print(line.number, line.kind, line.reason or line.note or "")
        if line.definition:
            save(Definition(**dataclasses.asdict(line.definition)))

Runs keep to what cron does: the shell, the environment in force at that line, standard input after `%`, no
second attempt, and no run for a time at which nothing was up.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from worker.cron import CronError, check_timezone, read_schedule

Kind = Literal["taken", "refused", "environment", "comment", "blank"]

LONGEST_LINE = 10_000
WITHOUT_IT = " The commands below would run without it."
# What cron gives a command that sets neither; the worker's own PATH may lead into a virtual environment.
CRON_ENVIRONMENT = {"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
NOT_USED = {
    "MAILTO": "MAILTO is not used: failures are shown on the dashboard",
    "MAILFROM": "MAILFROM is not used: failures are shown on the dashboard",
    "RANDOM_DELAY": "RANDOM_DELAY is not used: runs start on time",
}

_ENVIRONMENT = re.compile(r"""("[^"]*"|'[^']*'|[^\s=]+)[ \t]*=[ \t]*(.*)""", re.DOTALL)
_QUOTED = re.compile(r"""(["'])(.*?)\1""", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# The first % without a backslash ends the command; a backslash hides what follows, another backslash too.
_COMMAND = re.compile(r"((?:\\.|[^\\%]|\\$)*)(?:%(.*))?", re.DOTALL)
# Words that say where or how a command runs, not what it is.
_LEAD_IN = re.compile(r"(?:cd\s+\S+\s*(?:&&|;)|[A-Za-z_][A-Za-z0-9_]*=\S*|exec\s|nice\s|nohup\s|sudo\s)\s*")
# The shape of a command's first and second word that may show in a name.
_SHOWN = (re.compile(r"[\w./~$\"'{][^=@]*"), re.compile(r"[A-Za-z./~][A-Za-z./_:-]*"))


@dataclass(frozen=True, slots=True)
class CommandDefinition:
    """What a taken line becomes; the fields are those of `worker.transitions.definitions.Definition`.

    name: made of the command and the schedule alone, so it stays when other lines are added or moved.
        Of equal lines the second gets "-2" and so on.
    payload: {"argv": [shell, "-c", command], "env": {name: value}}, and "stdin": text if the line has a `%`.
    misfire, grace_seconds: cron does not make up for what it missed; five minutes bridge a restart.
    """

    name: str
    schedule: str
    timezone: str
    payload: dict[str, Any]
    job_type: str = "command"
    misfire: str = "none"
    grace_seconds: int = 300
    overlap: str = "skip"
    max_attempts: int = 1
    timeout_seconds: float = 86_400


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file.

    number: from 1.
    text: as in the file, without its line ending; a refused one may hold control characters.
    reason: a sentence for a refused line, else None.
    note: what differs from cron or deserves a look, or None.
    definition: for a taken line, else None.
    """

    number: int
    text: str
    kind: Kind
    reason: str | None = None
    note: str | None = None
    definition: CommandDefinition | None = None


class _Refused(Exception):
    """Carries the sentence to the line it belongs to; never leaves this module."""


@dataclass
class _Reader:
    """What holds at a line because of the lines above it."""

    system: bool
    user: str
    timezone: str
    environment: dict[str, str] = field(default_factory=lambda: dict(CRON_ENVIRONMENT))
    zone_setters: dict[str, int] = field(default_factory=dict)
    seen: dict[str, list[int]] = field(default_factory=dict)

    def line(self, number: int, text: str) -> Line:
        bare = text.strip(" \t\r")
        if not bare or bare.startswith("#"):
            return Line(number, text, "comment" if bare else "blank")
        try:
            _check_characters(bare)
            if assignment := _ENVIRONMENT.fullmatch(bare):
                return Line(number, text, "environment", note=self._assign(number, assignment))
            definition, note = self._define(number, bare)
        except _Refused as refused:
            return Line(number, text, "refused", reason=str(refused))
        return Line(number, text, "taken", note=note, definition=definition)

    def _assign(self, number: int, assignment: re.Match[str]) -> str | None:
        name, value = assignment[1].strip("\"'"), assignment[2]
        if not _VARIABLE.fullmatch(name):
            raise _Refused(
                f"{name!r} is not the name of a variable: use letters, digits and '_'.{WITHOUT_IT}"
            )
        if value[:1] in ('"', "'"):
            quoted = _QUOTED.fullmatch(value)
            if quoted is None:
                raise _Refused(
                    f"The value of {name} is not quoted right: close the quote at the line's end.{WITHOUT_IT}"
                )
            value = quoted[2]
        if name in ("LOGNAME", "USER"):
            return f"{name} is not taken over: it is always the user who runs the command"
        self.environment[name] = value
        if name in ("CRON_TZ", "TZ"):
            self.zone_setters[name] = number
        if name == "TZ":
            return (
                "TZ also sets the time zone of the schedules below; Debian's cron uses its own zone for them"
            )
        return NOT_USED.get(name)

    def _zone(self) -> str:
        """Give the zone in force: CRON_TZ wins over TZ, which wins over the caller's."""
        for variable in ("CRON_TZ", "TZ"):
            name = self.environment.get(variable, "").removeprefix(":")
            if name:
                return _checked_zone(name, f"{variable} of line {self.zone_setters[variable]}")
        return self.timezone

    def _define(self, number: int, bare: str) -> tuple[CommandDefinition, str | None]:
        schedule, rest = _split_schedule(bare)
        if self.system:
            rest = self._without_user(rest)
        if not rest:
            raise _Refused(f"There is no command after {'the user' if self.system else 'the schedule'}.")
        zone = self._zone()
        name, note = self._name(number, schedule, rest)
        if not self.system and rest.split()[0] in ("root", self.user):
            note = f"the command starts with {rest.split()[0]!r}: is this a system crontab (--system)?"
        return CommandDefinition(name, schedule, zone, self._payload(rest)), note

    def _without_user(self, rest: str) -> str:
        user = rest.split()[0] if rest else ""
        if user == self.user:
            return rest[len(user) :].lstrip(" \t")
        if not _USER.fullmatch(user):
            raise _Refused(
                f"A system crontab has a user in its sixth field; {user!r} is not the name of one."
            )
        raise _Refused(
            f"It runs as {user!r}; this worker runs as {self.user!r}: import it where one runs as {user!r}."
        )

    def _payload(self, rest: str) -> dict[str, Any]:
        command, stdin = split_command(rest)
        payload: dict[str, Any] = {
            "argv": [self.environment["SHELL"] or CRON_ENVIRONMENT["SHELL"], "-c", command],
            "env": dict(self.environment),
        }
        return payload if stdin is None else payload | {"stdin": stdin}

    def _name(self, number: int, schedule: str, command: str) -> tuple[str, str | None]:
        digest = hashlib.sha256(f"{schedule.lower()}\n{command}".encode()).hexdigest()[:8]
        name = f"{_slug(command)}-{digest}"
        lines = self.seen.setdefault(name, [])
        lines.append(number)
        if len(lines) == 1:
            return name, None
        return f"{name}-{len(lines)}", f"the same as line {lines[0]}: both run, as in cron"


def parse_crontab(text: str, *, system: bool, user: str, timezone: str = "UTC") -> list[Line]:
    """Read a crontab. Bad lines are reported, never raised.

    text: the whole file; Windows line endings and a missing last one are fine.
    system: the sixth field is a user, as in /etc/crontab and /etc/cron.d; only lines of `user` are taken.
    user: who runs the commands, the worker's own OS user.
    timezone: of the schedules, until a CRON_TZ or TZ line says otherwise.
    Returns one Line per line, in order; the empty text after the last line ending is not a line.
    Raises ValueError for an unknown `timezone`.
    """
    check_timezone(timezone)
    reader = _Reader(system, user, timezone)
    return [reader.line(number, line) for number, line in enumerate(_lines(text), start=1)]


def split_command(rest: str) -> tuple[str, str | None]:
    r"""Split what follows the schedule at its first bare `%`, as cron does.

    Returns the command, where `\%` has become `%`, and the standard input or None: further `%` are line ends
    in it, `\%` is `%`, and it ends with a line end.
    """
    parts = _COMMAND.fullmatch(rest)
    assert parts is not None, "the pattern takes every text"
    command = re.sub(
        r"\\(.)", lambda hidden: "%" if hidden[1] == "%" else hidden[0], parts[1], flags=re.DOTALL
    )
    if not parts[2]:
        return command, parts[2]
    stdin = re.sub(r"\\?%", lambda sign: "%" if len(sign[0]) == 2 else "\n", parts[2])
    return command, stdin if stdin.endswith("\n") else stdin + "\n"


def _lines(text: str) -> Iterator[str]:
    # Only \n ends a line for cron; str.splitlines would also cut at form feeds and Unicode separators.
    lines = text.removeprefix("\ufeff").split("\n")
    if lines[-1] == "":
        lines.pop()
    return (line.removesuffix("\r") for line in lines)


def _check_characters(bare: str) -> None:
    if len(bare) > LONGEST_LINE:
        raise _Refused(f"The line has {len(bare)} characters; at most {LONGEST_LINE} are allowed.")
    if _CONTROL.search(bare):
        raise _Refused("The line has control characters, which no command can be given: remove them.")
    try:
        bare.encode()
    except UnicodeEncodeError:
        raise _Refused(
            "The line is not UTF-8 text: convert the file first, with iconv for example."
        ) from None


def _split_schedule(bare: str) -> tuple[str, str]:
    if bare.startswith("-"):
        raise _Refused("A leading '-' (SUSE: do not log this) is not known here: remove it from the line.")
    count = 1 if bare.startswith("@") else 5
    parts = bare.split(None, count)
    schedule = " ".join(parts[:count])
    try:
        read_schedule(schedule)
    except CronError as wrong:
        raise _Refused(str(wrong)) from None
    return schedule, parts[count] if len(parts) > count else ""


def _checked_zone(name: str, whose: str) -> str:
    try:
        return check_timezone(name).key
    except ValueError as wrong:
        raise _Refused(f"The time zone in force here, {whose}, cannot be used. {wrong}") from None


def _slug(command: str) -> str:
    """Name a command by its first two words without folders; options and numbers may be secrets."""
    while lead_in := _LEAD_IN.match(command):
        command = command[lead_in.end() :]
    words = itertools.takewhile(
        lambda pair: pair[0].fullmatch(pair[1]), zip(_SHOWN, command.split(), strict=False)
    )
    names = [word.rstrip("/").rpartition("/")[2].lower() for _, word in words]
    return re.sub(r"[^a-z0-9_]+", "-", "-".join(names))[:50].strip("-_") or "command"
