"""The program's log: one line per move, as text for people or JSON for machines, on standard error.

Sentences go through ``logging``, as those of libraries do. Moves of runs come by the ten thousand a second,
so they make no record: the same formatter makes their lines, and the same handler writes them. What a
producer or handler wrote reaches the log escaped, so no line can pretend to be another, and with its secrets
hidden as on the pages: a log is kept and sent on to more people than those who may see them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, lru_cache
from threading import RLock
from time import monotonic, time
from typing import Any

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
# The fields with text of a handler, a library or a server.
FOREIGN_TEXTS = ("reason", "error", "how", "found")
# A run that moved: its id, type and attempt, and how many seconds that took where it has ended.
Moved = tuple[int, str, int, float | None]
KEEP_SECONDS = 0.1
KEEP_LINES = 200
# The two moves of a run that goes well. Only these may be left out.
GOOD = ("claim", "succeed")
# Of how many runs one is logged, by type; EACH is for every other type. 0: none.
Sample = Mapping[str, int]
EACH = ""
_sample: Sample | None = None


class LineFormatter(logging.Formatter):
    """Makes a line of an event and its fields; a record's are its message and ``extra={"fields": {…}}``."""

    def line(self, level: int, event: str, fields: Mapping[str, Any]) -> str:
        """Return one line; fields that are None are left out."""
        raise NotImplementedError

    def run_lines(self, event: str, worker_id: str, runs: Iterable[Moved]) -> Iterator[str]:
        """Yield what ``line`` makes of the claims or the good ends of runs."""
        for run_id, job_type, attempt, seconds in runs:
            fields = {
                "run_id": run_id, "job_type": job_type, "attempt": attempt, "worker_id": worker_id,
                "duration_seconds": seconds,
            }  # fmt: skip
            yield self.line(logging.INFO, event, fields)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line: an exception is a field of it, secrets are hidden."""
        fields = _redacted(getattr(record, "fields", {}))
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = _without_secrets(self.formatException(record.exc_info))
        # What this program itself says below a warning is made of no foreign text.
        if record.name != logger.name or record.levelno >= logging.WARNING:
            message = _without_secrets(message)
        trace = getattr(record, "trace", None)
        if trace is None:
            return self.line(record.levelno, message, fields)
        return self.traced(message, _without_secrets(trace).rstrip())

    def traced(self, sentence: str, trace: str) -> str:
        """Return the line of an error with its trace, perhaps empty."""
        return self.line(logging.ERROR, sentence, {"exception": trace or None})


class TextFormatter(LineFormatter):
    """``12:00:01 claim run=48210 type=send_invoice attempt=1``, in the machine's local time."""

    def line(self, level: int, event: str, fields: Mapping[str, Any]) -> str:
        """Return one line for people."""
        parts = [_local_time(), " WARNING " if level >= logging.WARNING else " ", escaped(event)]
        for name, value in fields.items():
            if value is not None:
                parts += _key(name), _shown(value)
        return "".join(parts)

    def run_lines(self, event: str, worker_id: str, runs: Iterable[Moved]) -> Iterator[str]:
        """Yield what ``line`` makes of these; what is the same for many runs is made once."""
        head, took = f"{_local_time()} {event}{_key('run_id')}", _key("duration_seconds")
        for run_id, job_type, attempt, seconds in runs:
            ended = "" if seconds is None else took + _seconds(seconds)
            yield f"{head}{run_id}{_of_attempt(job_type, attempt, worker_id)}{ended}"

    def traced(self, sentence: str, trace: str) -> str:
        """Return the sentence and the trace below it, as Python would print them."""
        return f"{sentence}\n{trace}".rstrip()


class JsonFormatter(LineFormatter):
    """One JSON object: at (ISO, UTC), level, event, then the fields under their own names."""

    def line(self, level: int, event: str, fields: Mapping[str, Any]) -> str:
        """Return one line for machines."""
        line: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": logging.getLevelName(level).lower(),
            "event": event,
        }
        line.update((name, value) for name, value in fields.items() if value is not None)
        return json.dumps(line, default=str)


class LineHandler(logging.Handler):
    """Writes lines to standard error: together when they are many, or when a tenth of a second has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: LineFormatter = TextFormatter()
        self.begin()

    def begin(self) -> None:
        """Begin with nothing: in a forked process, too, whose parent writes what waits."""
        self._kept: list[str] = []
        self._held: list[str] = []
        self._since = 0.0
        self._kept_lock = RLock()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record at once."""
        try:
            self.keep([self.lines.format(record)])
            self.flush()
        except Exception:
            self.handleError(record)

    def add(self, line: str) -> None:
        """Write a line soon."""
        with self._kept_lock:
            if not self._kept:
                self._since = monotonic()
            self._kept.append(line)
        if len(self._kept) >= KEEP_LINES or monotonic() - self._since >= KEEP_SECONDS:
            self.flush()

    def keep(self, lines: Iterable[str]) -> None:
        """Add lines without a look at the clock: they wait until they are many, or for ``flush``."""
        with self._kept_lock:
            self._kept.extend(lines)
        if len(self._kept) >= KEEP_LINES:
            self.flush()

    def hold(self, line: str) -> None:
        """Keep a line back that goes out in front of the next ones."""
        self.flush()
        with self._kept_lock:
            self._held.append(line)

    def drop_held(self) -> bool:
        """Forget what is held back; returns whether there was any."""
        self.flush()
        with self._kept_lock:
            held, self._held = self._held, []
        return bool(held)

    def flush(self) -> None:
        """Write what waits."""
        with self._kept_lock:
            kept, self._kept = self._kept, []
            if kept and self._held:
                kept, self._held = [*self._held, *kept], []
        if kept:
            try:
                sys.stderr.write("\n".join(kept) + "\n")
                sys.stderr.flush()
            except (OSError, ValueError):
                pass  # A log that cannot be written (a full disk, a closed pipe) stops no work.


_handler = LineHandler()
logger.addHandler(_handler)
logger.propagate = False
# Windows, where programs enqueue, forks nothing.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_handler.begin)


def configure(format: str = "text", *, level: str = "info", moves: str = "all") -> None:
    """Log in one of the two formats, text or json; a second call replaces the first.

    ``level``: info, warning or error; ``moves`` as ``read_moves`` takes it.
    """
    global _sample
    sample = read_moves(moves)
    _sample = None if sample == {EACH: 1} else sample
    _handler.lines = JsonFormatter() if format == "json" else TextFormatter()
    logger.setLevel(level.upper())


def never_wait() -> None:
    """Let this process never wait for who reads its log: what is too much is dropped, and its number told."""
    streams.never_wait(_dropped_line)


def _dropped_line(count: int, why: str) -> str:
    sentence = f"{count:,} log {'line was' if count == 1 else 'lines were'} dropped because {why}."
    fields = {"dropped": count} if isinstance(_handler.lines, JsonFormatter) else {}
    return _handler.lines.line(logging.WARNING, sentence, fields) + "\n"


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
    _handler.add(_handler.lines.line(logging.INFO, event, _redacted(fields)))


def run_moves(event: str, worker_id: str, runs: Iterable[Moved]) -> None:
    """Log the claims or the good ends of runs, a line each, as ``move`` does, but cheaper: each run has both.

    The lines wait for ``flush``, or until they are KEEP_LINES.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    if _sample is not None:
        runs = [each for each in runs if _is_logged(each[0], each[1])]
    _handler.keep(_handler.lines.run_lines(event, worker_id, runs))


def note(sentence: str, **fields: object) -> None:
    """Log that something happened which an operator may want to know."""
    logger.info(sentence, extra={"fields": fields})


def hold(sentence: str, **fields: object) -> None:
    """Log this in front of whatever is logged next: not at all when nothing is."""
    if logger.isEnabledFor(logging.INFO):
        _handler.hold(_handler.lines.line(logging.INFO, sentence, _redacted(fields)))


def drop_held() -> bool:
    """Forget what ``hold`` keeps; tell whether there was any, which is that nothing was logged since."""
    return _handler.drop_held()


def warn(sentence: str, **fields: object) -> None:
    """Log something that an operator should look at."""
    logger.warning(sentence, extra={"fields": fields})


def trouble(sentence: str, trace: str) -> None:
    """Log what somebody has to mend: for machines in one line, for people with its ``trace`` below it."""
    logger.error(sentence, extra={"trace": trace})


def flush() -> None:
    """Write what waits."""
    _handler.flush()


def _redacted(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``fields`` with the secrets hidden in FOREIGN_TEXTS; runs that succeed have none of them."""
    shown = dict(fields)
    for name in FOREIGN_TEXTS:
        if isinstance(text := shown.get(name), str):
            shown[name] = _without_secrets(text)
    return shown


@lru_cache(maxsize=256)
def _without_secrets(text: str) -> str:
    """Return ``text`` with its secrets hidden. What fails by the thousand says the same, and in few words."""
    # Its patterns take 8 ms to compile, and most processes end without a failure.
    from wakeboard.core.text.redaction import redact_text

    return redact_text(text)


def escaped(text: str) -> str:
    """Return ``text`` in printable characters alone: line ends, ESC and bidi controls become ``\\x…``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _local_time() -> str:
    """Return the machine's local time to the second."""
    return _clock_text(int(time()))


@lru_cache(maxsize=1)
def _clock_text(second: int) -> str:
    return datetime.fromtimestamp(second).strftime("%H:%M:%S")


@lru_cache(maxsize=1000)
def _of_attempt(job_type: str, attempt: int, worker_id: str) -> str:
    """Return what a text line says of these fields. The same ones are in many thousand lines a second."""
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


def _quoted(text: str) -> str:
    text = escaped(text)
    needs_quotes = not text or " " in text or '"' in text or "=" in text
    return json.dumps(text, ensure_ascii=False) if needs_quotes else text
