"""Reads the form of a schedule: values, or a sentence for each field that is wrong. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from wakeboard.core.run_spec import check_type
from wakeboard.core.text.json_equality import is_same_json
from wakeboard.core.text.redaction import HIDDEN, is_secret_item, redact
from wakeboard.core.time.cron import read_schedule
from wakeboard.core.time.durations import LONGEST_SECONDS, LONGEST_TEXT, format_duration, parse_duration
from wakeboard.core.time.zones import check_timezone
from wakeboard.queue.definitions import Definition, check_name
from wakeboard_dashboard.text.formats import Row, pretty

MISFIRES = ("one", "all", "none")
OVERLAPS = ("skip", "allow", "wait")
LONGEST_GRACE = 31_536_000
LONGEST_TIMEOUT = 315_360_000
MOST_ATTEMPTS = 2**31 - 1
MOVED = (
    f"A {{}} of the payload holds values shown as {HIDDEN}, and was changed so that it is not sure which is "
    f"which. Write the values themselves in the place of {HIDDEN}, or keep the list's length and order and "
    "change one item at a time. Nothing was saved."
)


def texts_of(definition: Row) -> dict[str, str]:
    """Return the texts of the form of ``definition``, by field; secrets of the payload are hidden."""
    return {
        "schedule": definition["schedule"] or "",
        "timezone": definition["timezone"],
        "payload": pretty(redact(definition["payload"])),
        "misfire": definition["misfire"],
        "grace_seconds": _duration_text(definition["grace_seconds"]),
        "overlap": definition["overlap"],
        "max_attempts": str(definition["max_attempts"] or ""),
        "timeout_seconds": _duration_text(definition["timeout_seconds"]),
        "priority": str(definition["priority"]),
        "enabled": "1" if definition["enabled"] else "0",
    }


def read(texts: Mapping[str, str], definition: Row) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the fields that ``texts`` names, and by field what is wrong with the others.

    What is hidden in the payload is taken from ``definition``.
    """
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, reader in _READERS.items():
        if name not in texts:
            continue
        try:
            values[name] = (
                _payload(texts[name], definition) if name == "payload" else reader(texts[name].strip())
            )
        except (ValueError, RecursionError) as error:
            errors[name] = str(error)
    return values, errors


def texts_of_new(timezone: str) -> dict[str, str]:
    """Return the texts of the empty form of a new schedule; ``timezone`` is the server's."""
    usual = asdict(Definition(name="", job_type="", schedule=None, timezone=timezone)) | {"enabled": True}
    texts = texts_of(usual) | {"name": "", "job_type": "", "new_type": ""}
    return {name: text for name, text in texts.items() if name != "enabled"}


def read_new(texts: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of a new Definition, and by field what is wrong with the others."""
    values, errors = read({name: text for name, text in texts.items() if name != "enabled"}, {"payload": {}})
    for name, check in (("name", check_name), ("job_type", check_type)):
        values[name] = texts.get(name, "").strip()
        try:
            check(values[name])
        except ValueError as error:
            errors[name] = str(error)
    return {"schedule": None, **values}, errors


def _duration_text(seconds: float | None) -> str:
    """Return seconds as text that ``read`` turns back into the same number, where it can."""
    if seconds is None:
        return ""
    plain = f"{Decimal(repr(seconds)).normalize():f}"
    if not 0 <= seconds <= LONGEST_SECONDS:
        return plain if len(plain) <= LONGEST_TEXT else f"{seconds:g}"
    shown = format_duration(seconds).replace(" ", "")
    return shown if parse_duration(shown) == seconds else plain


def _schedule(text: str) -> str | None:
    if not text:
        return None
    return read_schedule(text).text


def _timezone(text: str) -> str:
    check_timezone(text)
    return text


def _one_of(what: str, words: tuple[str, ...]) -> Callable[[str], str]:
    def reader(text: str) -> str:
        if text not in words:
            raise ValueError(f"{what} is “{text[:60]}”; allowed: {', '.join(words)}.")
        return text

    return reader


def _grace(text: str) -> int:
    seconds = parse_duration(text)
    if seconds != int(seconds) or seconds > LONGEST_GRACE:
        raise ValueError(f"The grace is “{text[:60]}”; allowed: whole seconds, 0s to 365d.")
    return int(seconds)


def _attempts(text: str) -> int | None:
    return _whole(text, "The attempts are", 1, MOST_ATTEMPTS) if text else None


def _priority(text: str) -> int:
    return _whole(text, "The priority is", 0, 4)


def _whole(text: str, what: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and low <= int(text) <= high):
        raise ValueError(f"{what} “{text[:60]}”; allowed: a whole number from {low} to {high}.")
    return int(text)


def _timeout(text: str) -> float | None:
    if not text:
        return None
    seconds = parse_duration(text)
    if not 0.001 <= seconds <= LONGEST_TIMEOUT:
        raise ValueError(f"The timeout is “{text[:60]}”; allowed: 0.001s to 3650d, or nothing.")
    return seconds


def _enabled(text: str) -> bool:
    words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if text.lower() not in words:
        raise ValueError(f"Enabled is “{text[:60]}”; allowed: 1 or 0.")
    return words[text.lower()]


def _payload(text: str, definition: Row) -> dict[str, object]:
    try:
        given = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"The payload is not JSON: {error.msg} at {where}.") from error
    if not isinstance(given, dict):
        raise ValueError('The payload must be a JSON object such as {"invoice_id": 812}.')
    payload = restored(given, definition["payload"])
    assert isinstance(payload, dict)
    return payload


def restored(given: object, stored: object, name: str = "") -> object:
    """Return ``given``, the value of ``name``, with what was hidden from its reader taken from ``stored``.

    Raises ValueError where something hidden has no place in ``stored``, or where it is not sure which.
    """
    if is_same_json(given, redact(stored)):
        return stored
    if isinstance(given, dict):
        before = stored if isinstance(stored, dict) else {}
        return {
            key: before[key]
            if value == HIDDEN and key in before
            else restored(value, before.get(key), str(key))
            for key, value in given.items()
        }
    if isinstance(given, list):
        if not _hides(given):
            return given
        before_items = stored if isinstance(stored, list) else []
        shown_items = redact(before_items)
        if not _is_in_place(given, shown_items):
            raise ValueError(MOVED.format(f"list “{name[:60]}”" if name else "list"))
        return [
            _item(given, place, shown, old, name)
            for place, (shown, old) in enumerate(zip(shown_items, before_items, strict=True))
        ]
    if isinstance(given, str) and HIDDEN in given:
        raise ValueError(f"The payload says {HIDDEN} where nothing was hidden: write the value itself.")
    return given


def _item(given: list[object], place: int, shown: object, old: object, name: str) -> object:
    """Return the item at ``place`` of a list; what the word before it hides goes with that word."""
    if not is_same_json(given[place], shown):
        return restored(given[place], old, name)
    if shown == HIDDEN != old and not is_secret_item(given, place):
        raise ValueError(MOVED.format(f"list “{name[:60]}”" if name else "list"))
    return old


def _hides(value: object) -> bool:
    """Whether HIDDEN stands anywhere in ``value``."""
    if isinstance(value, dict):
        return any(_hides(each) for each in value.values())
    if isinstance(value, list):
        return any(_hides(each) for each in value)
    return isinstance(value, str) and HIDDEN in value


def _is_in_place(given: list[object], shown: list[object]) -> bool:
    """Whether each hidden value of a changed list is sure to stand where it stood as it was ``shown``.

    Its length is the same, one item with hidden values differs at most, no item is where another was, and
    no two that hide something look alike.
    """
    if len(given) != len(shown):
        return False
    hiding = [(new, old) for new, old in zip(given, shown, strict=True) if _hides(new)]
    changed = [new for new, old in hiding if not is_same_json(new, old)]
    alike = any(sum(is_same_json(old, each) for each in shown) > 1 for _, old in hiding)
    moved = any(is_same_json(new, each) for new in changed for each in shown)
    return not alike and len(changed) < 2 and not moved


_READERS: Mapping[str, Callable[[str], Any]] = {
    "schedule": _schedule,
    "timezone": _timezone,
    "payload": str,
    "misfire": _one_of("Misfire", MISFIRES),
    "grace_seconds": _grace,
    "overlap": _one_of("Overlap", OVERLAPS),
    "max_attempts": _attempts,
    "timeout_seconds": _timeout,
    "priority": _priority,
    "enabled": _enabled,
}
FIELDS = tuple(_READERS)
