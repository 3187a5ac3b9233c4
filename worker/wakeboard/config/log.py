"""The program's log: one line per move, as text for people or JSON for machines, on standard error.

Sentences go through ``logging``, as those of libraries do. Moves of runs come by the ten thousand a second,
so they make no ``LogRecord``: the same formatter makes their lines, and the same handler writes them. Text of
producers and handlers is escaped, so that no line can pretend to be another, and redacted as on the pages: a
log reaches more people than may see secrets.
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

from wakeboard.config import streams

logger = logging.getLogger("wakeboard")

# Field → its name in text lines, where that is another.
SHORT_NAMES = {
    "run_id": "run",
    "job_type": "type",
    "worker_id": "worker",
    "duration_seconds": "took",
    "error_code": "error",
    "next_delay_seconds": "next",
}
# Fields with text of a handler, a library or a server.
REDACTED_FIELDS = ("reason", "error", "how", "found")
# Move of a run: its id, job type, attempt, and the seconds that the attempt took if it has ended.
RunMove = tuple[int, str, int, float | None]
FLUSH_SECONDS = 0.1
FLUSH_LINES = 200
# The moves of a run that goes well. Only these may be left out.
SAMPLED_MOVES = ("claim", "succeed")
# Job type → one of how many runs is logged, 0 for none; DEFAULT_TYPE is for every other type.
Sample = Mapping[str, int]
DEFAULT_TYPE = ""
_sample: Sample | None = None


class LineFormatter(logging.Formatter):
    """Formats an event and its fields; those of a record are its message and ``extra={"fields": {…}}``."""

    def line(self, level: int, event: str, fields: Mapping[str, object]) -> str:
        """Return one line; fields that are None are left out."""
        raise NotImplementedError

    def run_lines(self, event: str, worker_id: str, runs: Iterable[RunMove]) -> Iterator[str]:
        """Yield a line for each claim or success of a run."""
        for run_id, job_type, attempt, seconds in runs:
            fields: dict[str, object] = {
                "run_id": run_id, "job_type": job_type, "attempt": attempt, "worker_id": worker_id,
                "duration_seconds": seconds,
            }  # fmt: skip
            yield self.line(logging.INFO, event, fields)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, redacted, with its exception as a field."""
        fields = _redacted(getattr(record, "fields", {}))
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = _without_secrets(self.formatException(record.exc_info))
        # Our own sentences below a warning hold no text of others.
        if record.name != logger.name or record.levelno >= logging.WARNING:
            message = _without_secrets(message)
        trace = getattr(record, "trace", None)
        if trace is None:
            return self.line(record.levelno, message, fields)
        return self.format_error(message, _without_secrets(trace).rstrip())

    def format_error(self, sentence: str, trace: str) -> str:
        """Return the line of an error with its trace, which may be empty."""
        return self.line(logging.ERROR, sentence, {"exception": trace or None})


class TextFormatter(LineFormatter):
    """``12:00:01 claim run=48210 type=send_invoice attempt=1``, in the machine's local time."""

    def line(self, level: int, event: str, fields: Mapping[str, object]) -> str:
        """Return one line for people."""
        parts = [_local_time(), " WARNING " if level >= logging.WARNING else " ", escaped(event)]
        for name, value in fields.items():
            if value is not None:
                parts += _key(name), _value_text(value)
        return "".join(parts)

    def run_lines(self, event: str, worker_id: str, runs: Iterable[RunMove]) -> Iterator[str]:
        """Yield the lines; the parts that many runs share are made once."""
        head, duration_key = f"{_local_time()} {event}{_key('run_id')}", _key("duration_seconds")
        for run_id, job_type, attempt, seconds in runs:
            ended = "" if seconds is None else duration_key + _seconds(seconds)
            yield f"{head}{run_id}{_attempt_fields(job_type, attempt, worker_id)}{ended}"

    def format_error(self, sentence: str, trace: str) -> str:
        """Return the sentence and the trace below it, as Python would print them."""
        return f"{sentence}\n{trace}".rstrip()


class JsonFormatter(LineFormatter):
    """One JSON object: at (ISO, UTC), level, event, then the fields under their own names."""

    def line(self, level: int, event: str, fields: Mapping[str, object]) -> str:
        """Return one line for machines."""
        line: dict[str, object] = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": logging.getLevelName(level).lower(),
            "event": event,
        }
        line.update((name, value) for name, value in fields.items() if value is not None)
        return json.dumps(line, default=str)


class LineHandler(logging.Handler):
    """Writes lines to standard error: together, at FLUSH_LINES or after FLUSH_SECONDS."""

    def __init__(self) -> None:
        super().__init__()
        self.line_formatter: LineFormatter = TextFormatter()
        self.reset()

    def reset(self) -> None:
        """Start empty; also after a fork, where the parent writes what is pending."""
        self._pending: list[str] = []
        self._deferred: list[str] = []
        self._pending_since = 0.0
        self._pending_lock = RLock()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record at once."""
        try:
            self.extend([self.line_formatter.format(record)])
            self.flush()
        except Exception:
            self.handleError(record)

    def add(self, line: str) -> None:
        """Add a line, to be written soon."""
        with self._pending_lock:
            if not self._pending:
                self._pending_since = monotonic()
            self._pending.append(line)
        if len(self._pending) >= FLUSH_LINES or monotonic() - self._pending_since >= FLUSH_SECONDS:
            self.flush()

    def extend(self, lines: Iterable[str]) -> None:
        """Add lines without reading the clock: they wait for FLUSH_LINES, or for ``flush``."""
        with self._pending_lock:
            self._pending.extend(lines)
        if len(self._pending) >= FLUSH_LINES:
            self.flush()

    def defer(self, line: str) -> None:
        """Keep a line back that is written in front of the next ones."""
        self.flush()
        with self._pending_lock:
            self._deferred.append(line)

    def drop_deferred(self) -> bool:
        """Drop the deferred lines; return whether there were any."""
        self.flush()
        with self._pending_lock:
            deferred, self._deferred = self._deferred, []
        return bool(deferred)

    def flush(self) -> None:
        """Write the pending lines."""
        with self._pending_lock:
            lines, self._pending = self._pending, []
            if lines and self._deferred:
                lines, self._deferred = [*self._deferred, *lines], []
        if lines:
            try:
                sys.stderr.write("\n".join(lines) + "\n")
                sys.stderr.flush()
            except (OSError, ValueError):
                pass  # A log that cannot be written (a full disk, a closed pipe) stops no work.


_handler = LineHandler()
logger.addHandler(_handler)
logger.propagate = False
# There is no fork on Windows, where programs enqueue.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_handler.reset)


def configure(format: str = "text", *, level: str = "info", moves: str = "all") -> None:
    """Log in one of the two formats, text or json; a second call replaces the first.

    ``level``: info, warning or error; ``moves`` as ``read_moves`` takes it.
    """
    global _sample
    sample = read_moves(moves)
    _sample = None if sample == {DEFAULT_TYPE: 1} else sample
    _handler.line_formatter = JsonFormatter() if format == "json" else TextFormatter()
    logger.setLevel(level.upper())


def write_in_background() -> None:
    """Never wait for the reader of the log: lines that it does not read are dropped, and counted."""
    streams.write_in_background(_dropped_notice)


def _dropped_notice(count: int, reason: str) -> str:
    sentence = f"{count:,} log {'line was' if count == 1 else 'lines were'} dropped because {reason}."
    fields = {"dropped": count} if isinstance(_handler.line_formatter, JsonFormatter) else {}
    return _handler.line_formatter.line(logging.WARNING, sentence, fields) + "\n"


def read_moves(text: str) -> Sample:
    """Read which claims and successes are logged: ``all``, ``failures`` (none), ``1/100`` (one run in 100).

    After commas, or alone, the same for a type: ``1/100,send_invoice=all``. Raises ValueError or KeyError.
    """
    sample = {DEFAULT_TYPE: 1}
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
    """Return whether claim and success of a run are logged: both or neither, in every process."""
    assert _sample is not None
    one_in = _sample.get(job_type, _sample[DEFAULT_TYPE])
    # Hashed, because the ids may have a pattern, such as every second number.
    return one_in > 0 and (run_id * 0x9E3779B97F4A7C15 % 2**64 >> 32) % one_in == 0


def move(event: str, **fields: object) -> None:
    """Log one move of a run, schedule or worker: ``event`` is its name; None fields are left out.

    The line may wait for a tenth of a second or until ``flush``.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    is_plain = fields.get("error_code") is None and fields.get("reason") is None
    if _sample is not None and event in SAMPLED_MOVES and is_plain:
        run_id, job_type = fields["run_id"], fields["job_type"]
        if isinstance(run_id, int) and isinstance(job_type, str) and not _is_logged(run_id, job_type):
            return
    _handler.add(_handler.line_formatter.line(logging.INFO, event, _redacted(fields)))


def run_moves(event: str, worker_id: str, runs: Iterable[RunMove]) -> None:
    """Log the claims or the successes of runs, a line each, as ``move`` does but cheaper.

    The lines wait for ``flush``, or for FLUSH_LINES.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    if _sample is not None:
        runs = [each for each in runs if _is_logged(each[0], each[1])]
    _handler.extend(_handler.line_formatter.run_lines(event, worker_id, runs))


def note(sentence: str, **fields: object) -> None:
    """Log that something happened which an operator may want to know."""
    logger.info(sentence, extra={"fields": fields})


def defer(sentence: str, **fields: object) -> None:
    """Log this in front of the next line; not at all when there is none."""
    if logger.isEnabledFor(logging.INFO):
        _handler.defer(_handler.line_formatter.line(logging.INFO, sentence, _redacted(fields)))


def drop_deferred() -> bool:
    """Drop what was deferred; return whether there was any, so that nothing has been logged since."""
    return _handler.drop_deferred()


def warn(sentence: str, **fields: object) -> None:
    """Log something that an operator should look at."""
    logger.warning(sentence, extra={"fields": fields})


def error(sentence: str, trace: str) -> None:
    """Log an error that somebody has to fix: in JSON in one line, in text with its ``trace`` below it."""
    logger.error(sentence, extra={"trace": trace})


def flush() -> None:
    """Write the pending lines."""
    _handler.flush()


def _redacted(fields: Mapping[str, object]) -> dict[str, object]:
    """Return ``fields`` with secrets hidden in REDACTED_FIELDS; runs that succeed have none of these."""
    redacted = dict(fields)
    for name in REDACTED_FIELDS:
        if isinstance(text := redacted.get(name), str):
            redacted[name] = _without_secrets(text)
    return redacted


@lru_cache(maxsize=256)
def _without_secrets(text: str) -> str:
    """Return ``text`` with its secrets hidden. Cached: thousands of failures have the same few texts."""
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
def _attempt_fields(job_type: str, attempt: int, worker_id: str) -> str:
    """Return these fields of a text line. Thousands of lines a second have the same."""
    fields = {"job_type": _quoted(job_type), "attempt": attempt, "worker_id": _quoted(worker_id)}
    return "".join(f"{_key(name)}{text}" for name, text in fields.items())


@cache
def _key(name: str) -> str:
    return f" {SHORT_NAMES.get(name, name)}="


def _value_text(value: object) -> str:
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
