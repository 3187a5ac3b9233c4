"""The arguments of ``@job``: each is checked, and returned as the registry stores it.

Each function takes the type's name, for the sentence of the ValueError that it raises.
"""

from __future__ import annotations

import math
import re
from hashlib import blake2b

from wakeboard.core.retry import DEFAULT_BACKOFF, Backoff
from wakeboard.core.time.durations import parse_duration

NAME_CHARACTERS = 200
SCHEDULE_NAME_CHARACTERS = 100
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_name(name: object) -> None:
    """Raise ValueError unless ``name`` may be that of a job type."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARACTERS or _CONTROL.search(name):
        shown = (
            repr(name) if not isinstance(name, str) or len(name) < 60 else f"one of {len(name)} characters"
        )
        raise ValueError(
            f"A job type cannot be called {shown}: its name is text of 1 to {NAME_CHARACTERS} characters "
            "without control characters, for example @job('send_invoice')."
        )


def check_count(name: str, setting: str, value: object) -> int:
    """Return the value of ``setting``, a whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise ValueError(f"Job type {name!r}: {setting}={value!r} is not a whole number of 1 or more.")
    return value


def check_flag(name: str, setting: str, value: object) -> bool:
    """Return the value of ``setting``, True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"Job type {name!r}: {setting}={value!r} is neither True nor False.")
    return value


def check_seconds(name: str, setting: str, value: object) -> float:
    """Return the seconds of ``setting``, a number or text such as ``5m``."""
    wrong = f"Job type {name!r}: {setting}={value!r} is not a duration above 0"
    advice = f"{wrong}; write seconds (60) or text ('5m')."
    if isinstance(value, str):
        try:
            value = parse_duration(value)
        except ValueError as error:
            raise ValueError(f"{advice} {error}") from None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0 < value < 2**31
    ):
        raise ValueError(advice)
    return float(value)


def check_backoff(name: str, value: object) -> str:
    """Return the text of a backoff rule."""
    if not isinstance(value, str):
        raise ValueError(
            f"Job type {name!r}: backoff={value!r} is not text; write a rule such as {DEFAULT_BACKOFF!r}."
        )
    Backoff.parse(value)
    return value


def check_exceptions(name: str, value: object) -> tuple[type[BaseException], ...]:
    """Return the exception classes after which a run is not tried again."""
    classes = value if isinstance(value, tuple | list | set) else (value,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in classes):
        raise ValueError(
            f"Job type {name!r}: permanent={value!r} must hold exception classes, as (ValueError, KeyError)."
        )
    return tuple(classes)


def check_schedule(name: str, value: object) -> str | None:
    """Return the cron text of a schedule, None without one."""
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ValueError(f"Job type {name!r}: schedule={value!r} is not cron text such as '0 2 * * *'.")
    if value is not None:
        # Imported here: few types have a schedule, and the module is slow to load.
        from wakeboard.core.time.cron import CronError, read_schedule

        try:
            read_schedule(value)
        except CronError as error:
            raise ValueError(f"Job type {name!r}: schedule={value!r} cannot be: {error}") from None
    return value


def check_schedule_zone(name: str, schedule: str | None, value: object) -> str | None:
    """Return the name of the time zone of ``schedule``, None where the author names none."""
    if value is None:
        return None
    if schedule is None:
        raise ValueError(
            f"Job type {name!r}: timezone={value!r} is the zone of a schedule, and it has none; add "
            "schedule='0 2 * * *', or leave the zone out."
        )
    # Imported here: few types have a zone, and the module is slow to load.
    from wakeboard.core.time.zones import check_timezone

    if not isinstance(value, str):
        raise ValueError(f"Job type {name!r}: timezone={value!r} is not a name such as 'Europe/Paris'.")
    try:
        check_timezone(value)
    except ValueError as error:
        raise ValueError(f"Job type {name!r}: timezone={value!r} cannot be: {error}") from None
    return value


def schedule_names(job_type: str) -> tuple[str, str]:
    """Return the name of the schedule that the code of a type declares, and its name where that is taken.

    Of the type ``send.report``: ``send-report``, ``send-report-`` and six digits that its own name gives.
    """
    plain = re.sub(r"[^a-z0-9_-]+", "-", job_type.lower()).strip("-")[:SCHEDULE_NAME_CHARACTERS] or "schedule"
    digits = blake2b(job_type.encode("utf-8", "replace"), digest_size=3).hexdigest()
    return plain, f"{plain[: SCHEDULE_NAME_CHARACTERS - len(digits) - 1]}-{digits}"
