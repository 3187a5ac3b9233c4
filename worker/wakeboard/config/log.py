"""The program's log: one line per move, as text for people or JSON for machines, on standard error.

Whatever a producer or handler wrote reaches the log escaped, so no line can pretend to be another, and with
its secrets hidden as on the pages: a log is kept and sent on to more people than those who may see them.
Moves come by the ten thousand a second and are formatted here, past ``logging``'s records; everything else
that this process logs (libraries, warnings) goes through ``logging`` and ends in the same stream.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache, lru_cache
from threading import RLock
from time import monotonic, time
from typing import Any, Literal

from wakeboard.config import streams

logger = logging.getLogger("wakeboard")

SHORT = {
    "run_id": "run",
    "job_type": "type",
    "worker_id": "worker",
    "duration_seconds": "took",
    "error_code": "error",
    "next_delay_seconds": "next",
}
# The fields that carry what a handler, a library or a server said.
SAID = ("reason", "error", "how", "found")
# A run that moved: its id, type and attempt, and how many seconds that took where it has ended.
Moved = tuple[int, str, int, float | None]
KEEP_SECONDS = 0.1
KEEP_LINES = 200
# The two moves of a run that goes well. Only these may be left out.
GOOD = ("claim", "succeed")
# Of how many runs one is logged, by type; EACH is for every other type. 0: none, None: all of every type.
Sample = Mapping[str, int]
EACH = ""
_sample: Sample | None = None


class _Lines:
    """Lines on their way out: written together when they are many, or when a tenth of a second has passed."""

    def __init__(self) -> None:
        self.write_line: Callable[[int, str, dict[str, Any]], str] = text_line
        self.begin()

    def begin(self) -> None:
        """Begin with nothing: in a forked process, too, whose parent writes what waits."""
        self._kept: list[str] = []
        self._held: list[str] = []
        self._since = 0.0
        self._lock = RLock()

    def add(self, line: str, *, at_once: bool) -> None:
        with self._lock:
            if not self._kept:
                self._since = monotonic()
            self._kept.append(line)
        if at_once or len(self._kept) >= KEEP_LINES or monotonic() - self._since >= KEEP_SECONDS:
            self.flush()

    def keep(self, lines: Iterable[str]) -> None:
        """Add lines without a look at the clock: they wait until they are many, or for ``flush``."""
        with self._lock:
            self._kept.extend(lines)
        if len(self._kept) >= KEEP_LINES:
            self.flush()

    def hold(self, line: str) -> None:
        """Keep a line back that goes out in front of the next ones."""
        self.flush()
        with self._lock:
            self._held.append(line)

    def drop_held(self) -> bool:
        self.flush()
        with self._lock:
            held, self._held = self._held, []
        return bool(held)

    def flush(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, []
            if kept and self._held:
                kept, self._held = [*self._held, *kept], []
        if kept:
            try:
                sys.stderr.write("\n".join(kept) + "\n")
                sys.stderr.flush()
            except (OSError, ValueError):
                pass  # A log that cannot be written (a full disk, a closed pipe) stops no work.


def configure(
    format: Literal["text", "json"] | str = "text", *, level: str = "info", moves: str = "all"
) -> None:
    """Send the log to standard error in one of the two formats; a second call replaces the first.

    ``level``: info, warning or error; ``moves`` as ``read_moves`` takes it.
    """
    global _sample
    sample = read_moves(moves)
    _sample = None if sample == {EACH: 1} else sample
    _lines.write_line = json_line if format == "json" else text_line
    logger.handlers[:] = [_Handler()]
    logger.setLevel(level.upper())
    logger.propagate = False


def never_wait() -> None:
    """Let this process never wait for who reads its log: what is too much is dropped, and its number told."""
    streams.never_wait(_dropped_line)


def _dropped_line(count: int, why: str) -> str:
    sentence = f"{count:,} log {'line was' if count == 1 else 'lines were'} dropped because {why}."
    fields = {} if _lines.write_line is text_line else {"dropped": count}
    return _lines.write_line(logging.WARNING, sentence, fields) + "\n"


def read_moves(text: str) -> Sample:
    """Read which good moves are logged: ``all``, ``failures`` (none), ``1/100`` (those of one run in 100).

    After commas, or alone, the same for a type: ``1/100,send_invoice=all``. Raises ValueError or KeyError.
    """
    sample = {EACH: 1}
    for part in text.split(","):
        job_type, equals, share = (word.strip() for word in part.rpartition("="))
        if equals and not job_type:
            raise ValueError
        one, slash, of = share.partition("/")
        sample[job_type] = int(of) if slash else {"all": 1, "failures": 0}[share]
        if slash and (one.strip() != "1" or not 1 <= int(of) <= 1_000_000):
            raise ValueError
    return sample


def _is_logged(run_id: int, job_type: str) -> bool:
    """Return whether the good moves of a run are logged: all of them or none, in whichever process."""
    assert _sample is not None
    one_in = _sample.get(job_type, _sample[EACH])
    # Neighbours have all kinds of numbers, such as every second one.
    return one_in > 0 and (run_id * 0x9E3779B97F4A7C15 % 2**64 >> 32) % one_in == 0


def move(event: str, **fields: object) -> None:
    """Log one move of a run, schedule or worker: ``event`` is its name; None fields are left out.

    The line may wait for a tenth of a second or until ``flush``.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    says_nothing = fields.get("error_code") is None and fields.get("reason") is None
    if _sample is not None and event in GOOD and says_nothing:
        run_id, job_type = fields["run_id"], fields["job_type"]
        if isinstance(run_id, int) and isinstance(job_type, str) and not _is_logged(run_id, job_type):
            return
    _lines.add(_lines.write_line(logging.INFO, event, _told(fields)), at_once=False)


def run_moves(event: str, worker_id: str, runs: Iterable[Moved]) -> None:
    """Log the claims or the good ends of runs, a line each, as ``move`` does, but cheaper: each run has both.

    As text the lines wait for ``flush``, or until they are KEEP_LINES.
    """
    if _sample is not None:
        runs = [each for each in runs if _is_logged(each[0], each[1])]
    if _lines.write_line is not text_line:
        for run_id, job_type, attempt, seconds in runs:
            move(
                event, run_id=run_id, job_type=job_type, attempt=attempt, worker_id=worker_id,
                duration_seconds=seconds,
            )  # fmt: skip
    elif logger.isEnabledFor(logging.INFO):
        head, took = f"{_local_time()} {event}{_key('run_id')}", _key("duration_seconds")
        _lines.keep(
            f"{head}{run_id}{_attempt(job_type, attempt, worker_id)}"
            f"{'' if seconds is None else took + _seconds(seconds)}"
            for run_id, job_type, attempt, seconds in runs
        )


def note(sentence: str, **fields: object) -> None:
    """Log that something happened which an operator may want to know."""
    if logger.isEnabledFor(logging.INFO):
        _lines.add(_lines.write_line(logging.INFO, sentence, _told(fields)), at_once=True)


def hold(sentence: str, **fields: object) -> None:
    """Log this in front of whatever is logged next: not at all when nothing is."""
    if logger.isEnabledFor(logging.INFO):
        _lines.hold(_lines.write_line(logging.INFO, sentence, _told(fields)))


def drop_held() -> bool:
    """Forget what ``hold`` keeps; tell whether there was any, which is that nothing was logged since."""
    return _lines.drop_held()


def warn(sentence: str, **fields: object) -> None:
    """Log something that an operator should look at."""
    if logger.isEnabledFor(logging.WARNING):
        _lines.add(_lines.write_line(logging.WARNING, sentence, _told(fields)), at_once=True)


def trouble(sentence: str, trace: str) -> None:
    """Log what somebody has to mend: for machines in one line, for people with its ``trace`` below it."""
    if not logger.isEnabledFor(logging.ERROR):
        return
    sentence, trace = _without_secrets(sentence), _without_secrets(trace)
    if _lines.write_line is text_line:
        line = f"{sentence}\n{trace}".rstrip()
    else:
        line = _lines.write_line(logging.ERROR, sentence, {"exception": trace.rstrip() or None})
    _lines.add(line, at_once=True)


def flush() -> None:
    """Write what waits."""
    _lines.flush()


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    """Return ``fields`` with the secrets hidden in what somebody SAID; runs that succeed say nothing."""
    for name in SAID:
        said = fields.get(name)
        if isinstance(said, str):
            fields[name] = _without_secrets(said)
    return fields


def _without_secrets(text: str) -> str:
    # Its patterns take 8 ms to compile, and most processes end without a failure.
    from wakeboard.core.text.redaction import redact_text

    return redact_text(text)


def escaped(text: str) -> str:
    """Return ``text`` in printable characters alone: line ends, ESC and bidi controls become ``\\x…``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_clock_text: tuple[int, str] = (0, "")


def _local_time() -> str:
    """Return the machine's local time to the second; computed once per second."""
    global _clock_text
    second = int(time())
    if _clock_text[0] != second:
        _clock_text = (second, datetime.fromtimestamp(second).strftime("%H:%M:%S"))
    return _clock_text[1]


def text_line(level: int, event: str, fields: dict[str, Any]) -> str:
    """Return ``12:00:01 claim run=48210 type=send_invoice attempt=1``, in the machine's local time."""
    parts = [_local_time(), " WARNING " if level >= logging.WARNING else " ", escaped(event)]
    for name, value in fields.items():
        if value is not None:
            parts += (
                _key(name),
                _short(value) if type(value) is str and len(value) <= 100 else _shown(value),
            )
    return "".join(parts)


@lru_cache(maxsize=1000)
def _attempt(job_type: str, attempt: int, worker_id: str) -> str:
    """Return what ``text_line`` makes of these fields. The same ones are in many thousand lines a second."""
    fields = {"job_type": _quoted(job_type), "attempt": attempt, "worker_id": _quoted(worker_id)}
    return "".join(f"{_key(name)}{text}" for name, text in fields.items())


@cache
def _key(name: str) -> str:
    return f" {SHORT.get(name, name)}="


def _shown(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _seconds(value)
    return _quoted(str(value))


def _seconds(value: float) -> str:
    return f"{value:.3g}s" if -1000 < value < 1000 else f"{value:.0f}s"


@lru_cache(maxsize=1000)
def _short(text: str) -> str:
    """Return ``text`` as ``_quoted`` does. The same type and worker are in many thousand lines a second."""
    return _quoted(text)


def _quoted(text: str) -> str:
    text = escaped(text)
    needs_quotes = not text or " " in text or '"' in text or "=" in text
    return json.dumps(text, ensure_ascii=False) if needs_quotes else text


def json_line(level: int, event: str, fields: dict[str, Any]) -> str:
    """Return one JSON object: at (ISO, UTC), level, event, then the fields under their own names."""
    line: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "level": logging.getLevelName(level).lower(),
        "event": event,
    }
    line.update((name, value) for name, value in fields.items() if value is not None)
    return json.dumps(line, default=str)


class _Handler(logging.Handler):
    """Takes what others log through ``logging``."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, an exception's text among its fields."""
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = _without_secrets(logging.Formatter().formatException(record.exc_info))
        message = _without_secrets(record.getMessage())
        _lines.add(_lines.write_line(record.levelno, message, _told(fields)), at_once=True)


_lines = _Lines()
# Windows, where programs enqueue, forks nothing.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lines.begin)
