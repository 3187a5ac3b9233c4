"""The program's log: one line per move, as text for people or JSON for machines, on standard error.

Whatever a producer or handler wrote reaches the log escaped, so no line can pretend to be another.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

logger = logging.getLogger("wakeboard")

SHORT = {
    "run_id": "run",
    "job_type": "type",
    "worker_id": "worker",
    "duration_seconds": "took",
    "error_code": "error",
    "next_delay_seconds": "next",
}


def configure(format: Literal["text", "json"] | str = "text", *, level: int = logging.INFO) -> None:
    """Send the log to standard error in one of the two formats; a second call replaces the first."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


def move(event: str, **fields: object) -> None:
    """Log one move of a run, schedule or worker: ``event`` is its name; None fields are left out."""
    _log(logging.INFO, event, fields)


def note(sentence: str, **fields: object) -> None:
    """Log that something happened which an operator may want to know."""
    _log(logging.INFO, sentence, fields)


def warn(sentence: str, **fields: object) -> None:
    """Log something that an operator should look at."""
    _log(logging.WARNING, sentence, fields)


def _log(level: int, event: str, fields: dict[str, object]) -> None:
    if logger.isEnabledFor(level):
        known = {name: value for name, value in fields.items() if value is not None}
        logger.log(level, "%s", event, extra={"fields": known})


def escaped(text: str) -> str:
    """Return ``text`` in printable characters alone: line ends, ESC and bidi controls become ``\\x…``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _parts(record: logging.LogRecord) -> tuple[datetime, str, dict[str, Any]]:
    """Return when, what and the fields of ``record``, an exception's text among them."""
    fields = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[1] is not None:
        fields["exception"] = logging.Formatter().formatException(record.exc_info)
    return datetime.fromtimestamp(record.created, UTC), record.getMessage(), fields


class TextLines(logging.Formatter):
    """``12:00:01 claim run=48210 type=send_invoice attempt=1``, in the machine's local time."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        at, event, fields = _parts(record)
        words = [at.astimezone().strftime("%H:%M:%S")]
        if record.levelno >= logging.WARNING:
            words.append(record.levelname)
        words.append(escaped(event))
        words += [f"{SHORT.get(name, name)}={_shown(name, value)}" for name, value in fields.items()]
        return " ".join(words)


def _shown(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}s" if name.endswith("_seconds") else f"{value:.6g}"
    text = escaped(str(value))
    return json.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "=') else text


class JsonLines(logging.Formatter):
    """One JSON object per line: at (ISO, UTC), level, event, then the fields under their own names."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        at, event, fields = _parts(record)
        line = {
            "at": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": event,
        }
        return json.dumps(line | fields, default=str)
