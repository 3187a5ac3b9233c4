"""Parses a crontab file: each line becomes a definition or is refused with the reason. Pure: opens no file.

    for line in parse_crontab(text, system=False, user="deploy", timezone="Europe/Paris"):
        print(line.number, line.kind, line.reason or line.note or "")
        if line.definition:
            save(line.definition)

Runs behave as under cron: the user of a system crontab's line, the shell, the environment in force at that
line, standard input after `%`, no second attempt, and no run for a time at which nothing was up.
"""

import codecs
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from wakeboard.core.builtin_payloads import COMMAND_TYPE, command_type
from wakeboard.core.process.os_user import is_user_name
from wakeboard.core.time.cron import FIELDS, CronError, read_schedule
from wakeboard.core.time.zones import check_timezone
from wakeboard.queue.definitions import Definition
from wakeboard.schedules.crontab_commands import OrdinaryExit, name_of, ordinary_exit, systemd_unit

Kind = Literal["taken", "refused", "environment", "comment", "blank"]

LARGEST_FILE = 4 * 1_048_576
LONGEST_LINE = 10_000
WITHOUT_VARIABLE = " The commands below would run without it."
# Cron's defaults; the worker's own PATH may lead into a virtual environment.
CRON_ENVIRONMENT = {"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
NO_MAIL = (
    "there is no mail of what a command prints. Its output is on its run's page; WAKEBOARD_ALERT_MAIL has "
    "failures mailed; for mail after each run let the command send it (… 2>&1 | mail -s SUBJECT ADDRESS)"
)
UNUSED_VARIABLES = {
    "MAILTO": f"MAILTO is not used: {NO_MAIL}",
    "MAILFROM": f"MAILFROM is not used: {NO_MAIL}",
    "RANDOM_DELAY": "RANDOM_DELAY is not used: runs start on time",
}

_ENVIRONMENT = re.compile(r"""("[^"]*"|'[^']*'|[^\s=]+)[ \t]*=[ \t]*(.*)""", re.DOTALL)
_QUOTED = re.compile(r"""(["'])(.*?)\1""", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# The first % without a backslash ends the command; a backslash escapes what follows, also a backslash.
_COMMAND = re.compile(r"((?:\\.|[^\\%]|\\$)*)(?:%(.*))?", re.DOTALL)
_DAYS_AND_MONTHS = "sun|mon|tue|wed|thu|fri|sat|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_TIME = re.compile(rf"(?:[0-9*/,#?-]|L|W|{_DAYS_AND_MONTHS})+", re.IGNORECASE)
_SIXTH_TIME = re.compile(r"[0-9*][0-9*/,-]*|\?")
_BEGINS_COMMAND = re.compile(r"[A-Za-z./$\"'_\[({]")
# Period, delay in minutes, a name and a command. No day of the month is a word of three letters.
_ANACRON = re.compile(
    r"(?:\d{1,3}|@(?:daily|weekly|monthly|yearly|annually))[ \t]+\d{1,5}[ \t]+[A-Za-z][\w.-]{2,}[ \t]+\S.*",
    re.IGNORECASE,
)
# A comment, or a variable.
_NO_JOB = re.compile(r"#|\w+[ \t]*=")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
COUNT_WORDS = ("no", "one", "two", "three", "four")


@dataclass(frozen=True, slots=True)
class CrontabLine:
    """One line of the file.

    number: from 1.
    text: as in the file, without its line ending; a refused one may hold control characters.
    reason: a sentence for a refused line, else None.
    note: what differs from cron or deserves a look, or None.
    definition: for a taken line, else None. Its payload is {"argv": [shell, "-c", command], "env": {…}}, and
        "stdin": text if the line has a `%`.
    user: who runs it, for a taken line of a system crontab, else None.
    suffixes: how the name of its definition ends, whatever it was called when it was imported first; the
        second is that of imports that left the user of a system crontab out.
    ordinary_exit: why it may end with another exit code than 0 although all is well, else None.
    unit: a unit of systemd for a line that is refused because cron runs it when the machine starts.
    """

    number: int
    text: str
    kind: Kind
    reason: str | None = None
    note: str | None = None
    definition: Definition | None = None
    user: str | None = None
    suffixes: tuple[str, ...] = ()
    ordinary_exit: OrdinaryExit | None = None
    unit: str | None = None


class _LineRefused(Exception):
    """A line is refused; it never leaves this module."""

    def __init__(self, sentence: str, unit: str | None = None) -> None:
        super().__init__(sentence)
        self.unit = unit


@dataclass
class _Reader:
    """Reads line by line, with the state that the lines above have set."""

    system: bool
    user: str
    timezone: str
    environment: dict[str, str] = field(default_factory=lambda: dict(CRON_ENVIRONMENT))
    # The line that set each variable of the time zone.
    zone_lines: dict[str, int] = field(default_factory=dict)
    # The numbers of equal lines.
    equal_lines: dict[str, list[int]] = field(default_factory=dict)
    # Right above the line.
    comment: str | None = None

    def read_line(self, number: int, text: str) -> CrontabLine:
        bare = text.strip(" \t\r")
        comment, self.comment = self.comment, None
        if not bare or bare.startswith("#"):
            self.comment = bare or None
            return CrontabLine(number, text, "comment" if bare else "blank")
        try:
            _check_characters(bare)
            if assignment := _ENVIRONMENT.fullmatch(bare):
                return CrontabLine(number, text, "environment", note=self._assign(number, assignment))
            return self._define(number, text, bare, comment)
        except _LineRefused as refused:
            return CrontabLine(number, text, "refused", reason=str(refused), unit=refused.unit)

    def _assign(self, number: int, assignment: re.Match[str]) -> str | None:
        name, value = assignment[1].strip("\"'"), assignment[2]
        if not _VARIABLE.fullmatch(name):
            raise _LineRefused(
                f"{name!r} is not the name of a variable: use letters, digits and '_'.{WITHOUT_VARIABLE}"
            )
        if value[:1] in ('"', "'"):
            quoted = _QUOTED.fullmatch(value)
            if quoted is None:
                raise _LineRefused(
                    f"The value of {name} is not quoted right: close the quote at the line's end."
                    f"{WITHOUT_VARIABLE}"
                )
            value = quoted[2]
        if name in ("LOGNAME", "USER"):
            return f"{name} is not taken over: it is always the user who runs the command"
        self.environment[name] = value
        if name in ("CRON_TZ", "TZ"):
            self.zone_lines[name] = number
        if name == "TZ":
            return (
                "TZ also sets the time zone of the schedules below; Debian's cron uses its own zone for them"
            )
        return UNUSED_VARIABLES.get(name)

    def _zone(self) -> str:
        """Return the zone in force: CRON_TZ wins over TZ, which wins over the caller's."""
        for variable in ("CRON_TZ", "TZ"):
            name = self.environment.get(variable, "").removeprefix(":")
            if name:
                return _check_zone(name, f"{variable} of line {self.zone_lines[variable]}")
        return self.timezone

    def _define(self, number: int, text: str, bare: str, comment: str | None) -> CrontabLine:
        if _first_word(bare).lower() == "@reboot":
            raise self._at_reboot(bare, comment)
        schedule, rest = _split_schedule(bare)
        user, rest = self._split_user(rest)
        if not rest:
            raise _LineRefused(f"There is no command after {'the user' if self.system else 'the schedule'}.")
        zone, payload = self._zone(), self._payload(rest)
        command = payload["argv"][-1]
        suffixes, equal = self._suffixes(number, schedule, rest, user)
        notes = [f"the same as line {equal}: both run, as in cron"] if equal else []
        notes += self._doubts(rest)
        definition = Definition(
            # The suffix keeps the name when other lines are added or moved.
            f"{name_of(command, comment)}{suffixes[0]}",
            COMMAND_TYPE if user is None else command_type(user),
            schedule,
            payload,
            zone,
            # Cron does not make up for what it missed; five minutes are enough for a restart.
            misfire="none",
            grace_seconds=300,
            max_attempts=1,
            timeout_seconds=86_400,
        )
        return CrontabLine(
            number, text, "taken", note="; ".join(notes) or None, definition=definition, user=user,
            suffixes=suffixes, ordinary_exit=ordinary_exit(command),
        )  # fmt: skip

    def _at_reboot(self, bare: str, comment: str | None) -> _LineRefused:
        user, rest = self._split_user(bare[len("@reboot") :].lstrip(" \t"))
        if not rest:
            return _LineRefused("There is no command after '@reboot'.")
        payload = self._payload(rest)
        name = name_of(payload["argv"][-1], comment)
        text = systemd_unit(name, user or self.user, payload["argv"], payload["env"], payload.get("stdin"))
        return _LineRefused(
            f"'@reboot' is not a time: let the machine's own start-up run it, as the unit {name}.service of "
            "systemd for example.",
            text,
        )

    def _doubts(self, rest: str) -> list[str]:
        """Return what a person should check, because the line may be meant otherwise."""
        first = _first_word(rest)
        if not self.system and first in ("root", self.user):
            return [f"the command starts with {first!r}: is this a system crontab (--system)?"]
        if _SIXTH_TIME.fullmatch(first):
            doubt = (
                f"{first!r} is taken for the command, as in cron: there are five time fields, none of seconds"
            )
            return [doubt]
        return []

    def _split_user(self, rest: str) -> tuple[str | None, str]:
        """Return the user of a system crontab's line, None in one of a person, and the command."""
        if not self.system:
            return None, rest
        user = _first_word(rest)
        if not is_user_name(user):
            more = " A line has five time fields and none for seconds." if _SIXTH_TIME.fullmatch(user) else ""
            raise _LineRefused(
                f"A system crontab has a user in its sixth field; {user!r} is not the name of one.{more}"
            )
        return user, rest[len(user) :].lstrip(" \t")

    def _payload(self, rest: str) -> dict[str, Any]:
        command, stdin = split_command(rest)
        payload: dict[str, Any] = {
            "argv": [self.environment["SHELL"] or CRON_ENVIRONMENT["SHELL"], "-c", command],
            "env": dict(self.environment),
        }
        return payload if stdin is None else payload | {"stdin": stdin}

    def _suffixes(
        self, number: int, schedule: str, command: str, user: str | None
    ) -> tuple[tuple[str, ...], int | None]:
        """Return how the definition's name ends, and the number of the first equal line above."""
        without_user = f"{schedule.lower()}\n{command}"
        text = without_user if user is None else f"{without_user}\n{user}"
        lines = self.equal_lines.setdefault(text, [])
        lines.append(number)
        count = "" if len(lines) == 1 else f"-{len(lines)}"
        suffixes = tuple(f"-{_digest(each)}{count}" for each in dict.fromkeys((text, without_user)))
        return suffixes, lines[0] if count else None


def read_crontab(data: bytes, file: str) -> str:
    """Return the text of the crontab ``file``; bytes that are not UTF-8 are kept as lone surrogates.

    Raises ValueError, in a sentence, for a file that is too large, is UTF-16, has the line ends of old Macs,
    or is an anacrontab.
    """
    if len(data) > LARGEST_FILE:
        raise ValueError(f"{file} has more than 4 MiB; it is no crontab.")
    if data.startswith(_UTF_16) or data.count(0) > len(data) // 4:
        raise ValueError(
            f"{file} is text in UTF-16, and a crontab is UTF-8: convert it with iconv -f UTF-16 -t UTF-8."
        )
    lines = data.replace(b"\r\n", b"\n")
    if b"\n" not in lines and b"\r" in lines.removesuffix(b"\r"):
        raise ValueError(
            f"{file} has a carriage return alone at its line ends, as old Macs wrote them: convert it "
            "with tr '\\r' '\\n'."
        )
    text = data.decode("utf-8", "surrogateescape")
    _check_is_no_anacrontab(text, file)
    return text


def _check_is_no_anacrontab(text: str, file: str) -> None:
    """Raise ValueError, in a sentence, where the text of ``file`` is an anacrontab: each line of it is."""
    lines = [(number, line.strip(" \t\r")) for number, line in enumerate(text.split("\n"), start=1)]
    jobs = [(number, line) for number, line in lines if line and not _NO_JOB.match(line)]
    if jobs and all(_ANACRON.fullmatch(line) for _, line in jobs):
        raise ValueError(
            f"{file} is an anacrontab, no crontab: line {jobs[0][0]} has a period, a delay, a name and a "
            "command. Leave it to anacron, or write its commands as lines of a crontab, such as "
            "'30 4 * * * COMMAND'."
        )


def parse_crontab(text: str, *, system: bool, user: str, timezone: str = "UTC") -> list[CrontabLine]:
    """Read a crontab. Bad lines are reported, never raised.

    text: the whole file; Windows line endings and a missing last one are fine.
    system: the sixth field is a user, as in /etc/crontab and /etc/cron.d; each line becomes a command of it.
    user: whose crontab it is, where it is that of a person.
    timezone: of the schedules, until a CRON_TZ or TZ line says otherwise.
    Returns one CrontabLine per line, in order; the empty text after the last line ending is not a line.
    Raises ValueError for an unknown `timezone`.
    """
    check_timezone(timezone)
    reader = _Reader(system, user, timezone)
    return [reader.read_line(number, line) for number, line in enumerate(_lines(text), start=1)]


def split_command(rest: str) -> tuple[str, str | None]:
    r"""Split what follows the schedule at its first bare `%`, as cron does.

    Returns the command, where `\%` has become `%`, and the standard input or None: further `%` are line ends
    in it, `\%` is `%`, and it ends with a line end.
    """
    parts = _COMMAND.fullmatch(rest)
    assert parts is not None, "the pattern takes every text"
    command = re.sub(
        r"\\(.)", lambda escaped: "%" if escaped[1] == "%" else escaped[0], parts[1], flags=re.DOTALL
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


def _first_word(text: str) -> str:
    """Return the first word, empty where there is none."""
    return next(iter(text.split(None, 1)), "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _check_characters(bare: str) -> None:
    if len(bare) > LONGEST_LINE:
        raise _LineRefused(f"The line has {len(bare)} characters; at most {LONGEST_LINE} are allowed.")
    if _CONTROL.search(bare):
        raise _LineRefused("The line has control characters, which no command can be given: remove them.")
    try:
        bare.encode()
    except UnicodeEncodeError:
        raise _LineRefused(
            "The line is not UTF-8 text: convert the file first, with iconv for example."
        ) from None


def _split_schedule(bare: str) -> tuple[str, str]:
    if bare.startswith("-"):
        raise _LineRefused(
            "A leading '-' (SUSE: do not log this) is not known here: remove it from the line."
        )
    if _ANACRON.fullmatch(bare):
        raise _LineRefused(
            "It is a line of an anacrontab: a period, a delay, a name and a command. Leave it to anacron, or "
            "write its command behind five time fields."
        )
    count = 1 if bare.startswith("@") else 5
    parts = bare.split(None, count)
    schedule = " ".join(parts[:count])
    try:
        read_schedule(schedule)
    except CronError as wrong:
        raise _LineRefused(_describe_missing_fields(parts) or str(wrong)) from None
    return schedule, parts[count] if len(parts) > count else ""


def _describe_missing_fields(parts: list[str]) -> str | None:
    """Return the sentence for less than five time fields before what looks like the command, else None."""
    count = next((n for n, word in enumerate(parts) if not _TIME.fullmatch(word)), len(parts))
    if not 0 < count < min(len(FIELDS), len(parts)) or not _BEGINS_COMMAND.match(parts[count]):
        return None
    fields = f"{COUNT_WORDS[count]} time field{'' if count == 1 else 's'}"
    return (
        f"The line has {fields} ({' '.join(parts[:count])}) before {parts[count]!r}; it takes five: "
        f"{', '.join(FIELDS)}."
    )


def _check_zone(name: str, source: str) -> str:
    try:
        return check_timezone(name).key
    except ValueError as wrong:
        raise _LineRefused(f"The time zone in force here, {source}, cannot be used. {wrong}") from None
