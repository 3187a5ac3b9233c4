"""The fields of a run that is to be enqueued, and the check of each. Knows no database.

What is refused is refused with a sentence, before anything is written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from wakeboard.core.parent_run import find_enqueuer
from wakeboard.core.text.plain_json import explain_json_error

Encoder = type[json.JSONEncoder]
PAYLOAD_BYTES = 65_536
# What the CHECK on the table allows, and so the largest value of the setting.
TABLE_CHARACTERS = 1_048_576
# Python's decoder gives up somewhat below a thousand, depending on who calls it.
MAX_DEPTH = 500
# The characters of the longest float, 5e-324, without an exponent.
_LONGEST_FLOAT = 326
# Halves of surrogate pairs, which no encoding has, and what PostgreSQL counts among the controls.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# https://www.w3.org/TR/trace-context/#traceparent-header; a later version may say more after the flags.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]{0,100})?")
# The times that the table takes: every time zone can show them.
_FIRST_TIME, _LAST_TIME = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
# Made once: json.dumps makes one for each payload that is not to hold NaN.
_ENCODER = json.JSONEncoder(allow_nan=False)


class EnqueueError(ValueError):
    """A run cannot be enqueued as given; ``str()`` is a sentence that says why."""


class RunColumns(NamedTuple):
    """The checked columns of a run that is to be inserted; ``payload`` is JSON text, ``delay`` in seconds.

    The defaults are those of the table.
    """

    job_type: str
    payload: str
    run_at: datetime | None = None
    delay: float = 0.0
    key: str | None = None
    priority: int = 2
    max_attempts: int | None = None
    enqueued_by: str | None = None
    origin_run_id: int | None = None
    traceparent: str | None = None


class NewRun(NamedTuple):
    """A run to be enqueued. ``delay`` is in seconds (or a timedelta), ``run_at`` a datetime with a zone."""

    job_type: str
    payload: Mapping[str, object] | None = None
    run_at: datetime | None = None
    delay: float | timedelta | None = None
    key: str | None = None
    priority: int = 2
    max_attempts: int | None = None
    enqueued_by: str | None = None
    traceparent: str | None = None

    def columns(self, limit: int, encoder: Encoder | None = None) -> RunColumns:
        """Check each field, and return the columns of the run's row. Raises EnqueueError.

        ``limit`` is that of the payload in bytes; ``encoder`` writes what JSON has no form for.
        """
        delay = self.delay.total_seconds() if isinstance(self.delay, timedelta) else self.delay
        check_names(self)
        # A field that is left out is not checked: between two commits each function call counts.
        if self.run_at is not None or delay is not None:
            _check_times(self.run_at, delay)
        if self.enqueued_by is not None:
            _check_enqueued_by(self.enqueued_by)
        if not _is_integer(self.priority, 0, 4):
            raise EnqueueError(f"Priority {self.priority!r} is not known; allowed: 0 (first) to 4 (last).")
        if self.max_attempts is not None and not _is_integer(self.max_attempts, 1, 2**31 - 1):
            raise EnqueueError(f"max_attempts is {self.max_attempts!r}; allowed: 1 to {2**31 - 1:,}.")
        # Without the call of RunColumns: it would take a twentieth of the time of this method.
        return tuple.__new__(
            RunColumns,
            (
                self.job_type,
                payload_text(self.payload, limit, encoder),
                # In UTC: the two half past twos of the night when clocks go back are equal in their own zone.
                self.run_at and self.run_at.astimezone(UTC),
                float(delay or 0),
                self.key,
                self.priority,
                self.max_attempts,
                *find_enqueuer(self.enqueued_by),
                None if self.traceparent is None else _read_traceparent(self.traceparent),
            ),
        )


def check_names(run: NewRun) -> None:
    """Raise EnqueueError unless the job type and the key of ``run`` are allowed."""
    check_type(run.job_type)
    if run.key is not None:
        _check_key(run.key)


def check_type(job_type: str) -> None:
    """Raise EnqueueError unless ``job_type`` can name a job type."""
    if not isinstance(job_type, str) or not 1 <= len(job_type) <= 200 or not _is_plain(job_type):
        raise EnqueueError("A job type is text of 1 to 200 characters without control characters.")


def _check_key(key: str) -> None:
    if not isinstance(key, str) or not 1 <= len(key) <= 200 or not _is_plain(key):
        raise EnqueueError(
            "An idempotency key is text of 1 to 200 characters without control characters, "
            "such as 'invoice_charge:812'."
        )


def _check_enqueued_by(name: str) -> None:
    if not isinstance(name, str) or len(name) > 200 or not _is_plain(name):
        raise EnqueueError("enqueued_by is text of at most 200 characters without control characters.")


def _read_traceparent(traceparent: object) -> str | None:
    """Return ``traceparent``; None for text that its standard does not allow: headers come from outside."""
    if not isinstance(traceparent, str):
        raise EnqueueError(f"traceparent is {traceparent!r:.100}; give the text of that header, or None.")
    return traceparent if _TRACEPARENT.fullmatch(traceparent) else None


def _is_integer(number: object, low: int, high: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and low <= number <= high


def _check_times(run_at: datetime | None, delay: float | None) -> None:
    if run_at is not None and delay is not None:
        raise EnqueueError("Give run_at or delay, not both.")
    if run_at is not None and not isinstance(run_at, datetime):
        raise EnqueueError(f"run_at is a {type(run_at).__name__}; give a datetime with a time zone.")
    if run_at is not None and run_at.utcoffset() is None:
        raise EnqueueError("run_at has no time zone; use datetime.now(timezone.utc) or another aware time.")
    if run_at is not None and not _FIRST_TIME <= run_at < _LAST_TIME:
        raise EnqueueError(f"run_at is {run_at}; allowed: the years 1 to 9999 but for their ends.")
    if delay is not None and (isinstance(delay, bool) or not isinstance(delay, int | float)):
        raise EnqueueError(f"delay is {delay!r}; give seconds (300) or a timedelta.")
    if delay is not None and not 0 <= delay <= 315_360_000:
        raise EnqueueError(f"delay is {delay!r} seconds; allowed: 0 to ten years.")


def _is_plain(text: str) -> bool:
    """Return whether PostgreSQL can store ``text`` and a screen can show it on one line."""
    return _UNPRINTABLE.search(text) is None


def payload_text(payload: Mapping[str, object] | None, limit: int, encoder: Encoder | None = None) -> str:
    """Return ``payload`` as JSON text of at most ``limit`` bytes, as ``encoder`` writes it.

    Raises EnqueueError with the reason.
    """
    if encoder is not None:
        payload = _encode(payload, encoder)
    try:
        # Spaced as PostgreSQL writes jsonb, so that the CHECK on the table counts the same length.
        text = _ENCODER.encode({} if payload is None else payload)
    except (TypeError, ValueError, RecursionError) as wrong:
        why = explain_json_error(payload, "payload", str(wrong))
        hint = "" if encoder is not None else ", or give an encoder (encoder=wakeboard.PlainEncoder)"
        raise EnqueueError(f"The payload is not JSON: {why}. Hand it in as text or number{hint}.") from wrong
    if not text.startswith("{"):
        raise EnqueueError('The payload is not a JSON object; wrap it, for example {"value": …}.')
    if len(text) > limit and (size := _bytes_of(payload, text)) > limit:
        raise EnqueueError(
            f"The payload has {size:,} bytes; allowed: {limit:,}. Store the data elsewhere and "
            "enqueue its id (or raise WAKEBOARD_PAYLOAD_BYTES)."
        )
    if _needs_value_check(text):
        _check_values(payload, len(text))
    return text


def _encode(payload: object, encoder: Encoder) -> Any:
    """Return ``payload`` as it is in the JSON of ``encoder``: what is checked is what is stored."""
    if not (isinstance(encoder, type) and issubclass(encoder, json.JSONEncoder)):
        raise EnqueueError(f"encoder is {encoder!r:.100}; give a class derived from json.JSONEncoder.")
    instance = encoder()
    try:
        return json.loads(instance.encode(payload))
    except (TypeError, ValueError, RecursionError) as wrong:
        why = explain_json_error(payload, "payload", str(wrong), instance.default)
        raise EnqueueError(f"The payload is not JSON for {encoder.__name__}: {why}.") from wrong


def _bytes_of(payload: object, text: str) -> int:
    """Return the bytes of a payload in UTF-8; ``text`` is its JSON, with six for a letter beyond ASCII."""
    if "\\u" not in text:
        return len(text)
    return len(json.dumps(payload, ensure_ascii=False).encode(errors="surrogatepass"))


def _needs_value_check(text: str) -> bool:
    """Return whether JSON ``text`` may hold what ``_check_values`` refuses, which costs far more."""
    if "\\u" in text and ("\\u0000" in text or "\\ud" in text):
        return True
    return len(text) > MAX_DEPTH and (
        text.count("{") + text.count("[") > MAX_DEPTH
        or (len(text) * _LONGEST_FLOAT > TABLE_CHARACTERS and ("e+" in text or "e-" in text))
    )


def _check_values(payload: object, length: int) -> None:
    """Raise EnqueueError for values that JSON allows, and jsonb or its readers do not.

    jsonb holds neither NUL nor halves of surrogate pairs, and writes numbers without exponents: 1e+300 in 301
    characters. ``length`` is that of the JSON text.
    """
    level: Sequence[object] = [payload]
    for _ in range(MAX_DEPTH + 1):
        if any(isinstance(value, str) and _UNSTORABLE.search(value) for value in level):
            raise EnqueueError(
                "The payload holds text that PostgreSQL cannot store (NUL or half a character)."
            )
        length += sum(_extra_characters(value) for value in level if isinstance(value, float))
        level = [part for value in level for part in _children(value)]
    if level:
        raise EnqueueError(f"The payload is nested deeper than {MAX_DEPTH} levels; flatten it.")
    if length > TABLE_CHARACTERS:
        raise EnqueueError(
            f"The payload has {length:,} characters where its numbers are written without exponents; "
            f"allowed: {TABLE_CHARACTERS:,}. Send such numbers as text."
        )


def _children(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return chain(value.keys(), value.values())
    return value if isinstance(value, (list, tuple)) else ()


def _extra_characters(number: float) -> int:
    """Return how much longer ``number`` is without an exponent."""
    short = float.__repr__(number)
    return len(f"{Decimal(short):f}") - len(short)


@cache
def payload_limit() -> int:
    """Return the largest payload in bytes: ``WAKEBOARD_PAYLOAD_BYTES`` or 65,536, never above 1 MiB.

    The variable is read once: a look-up takes half as long as all other checks together.
    """
    try:
        return min(int(os.environ.get("WAKEBOARD_PAYLOAD_BYTES", PAYLOAD_BYTES)), TABLE_CHARACTERS)
    except ValueError:
        return PAYLOAD_BYTES
