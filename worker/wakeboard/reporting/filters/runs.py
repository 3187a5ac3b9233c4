"""The filters of runs, wherever runs are listed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wakeboard.core.errors import error_groups
from wakeboard.core.states import FAILING
from wakeboard.reporting.filters.values import (
    MOMENT,
    STATUS,
    TEXT,
    Field,
    FilterError,
    FilterValues,
    identifier,
)


def _attempts(value: str) -> tuple[int, int | None]:
    """Read ``3``, ``3+`` (at least) or ``2-5`` as the lowest and the highest number; refuse ``5-2``."""
    match = re.fullmatch(r"([0-9]{1,9})(?:(\+)|-([0-9]{1,9}))?", value)
    if not match:
        raise ValueError
    low = int(match[1])
    high = int(match[3] or low)
    if high < low:
        raise FilterError(f"“attempts” is {value}: a range begins with the smaller number, {high}-{low}.")
    return low, None if match[2] else high


def _schedule(value: str) -> str | int:
    """Read the name of a schedule, or ``#17``, its id: a name may be used again, an id is not."""
    if re.fullmatch(r"#[0-9]{1,19}", value):
        return identifier(value[1:])
    if not re.fullmatch(r"[a-z0-9_-]{1,100}", value):
        raise ValueError
    return value


def _group(value: str) -> int:
    """Read the number of an error group. It is never 0, which a search would take for no filter."""
    number = error_groups.parse_fingerprint(value)
    if number == 0:
        raise ValueError
    return number


FIELDS: dict[str, Field] = {
    "status": STATUS,
    "type": TEXT,
    "schedule": Field(
        _schedule, "a schedule's name (1 to 100 of a-z, 0-9, _ and -), or its number such as #17"
    ),
    "error": TEXT,
    "group": Field(_group, "an error group, thirteen digits 0-9 a-f as the page of errors says"),
    "worker": TEXT,
    "key": TEXT,
    "attempts": Field(_attempts, "a number such as 3, or 3+ for at least, or 2-5"),
    "since": MOMENT,
    "until": MOMENT,
    "failed-since": MOMENT,
    "failed-until": MOMENT,
    "payload.": TEXT,
    "q": TEXT,
}
# They limit the time of a run's last failure; since and until limit the time at which it was enqueued.
FAILURE_TIMES = ("failed-since", "failed-until")


def states_of(filters: FilterValues) -> Sequence[str]:
    """Return the states that ``filters`` allow, none for all.

    Without a status, an error or the time of a failure means runs that fail now; a group means all runs that
    failed so.
    """
    states: Sequence[str] = filters.get("status") or ()
    is_of_failures = filters.get("error") or (
        any(map(filters.get, FAILURE_TIMES)) and not filters.get("group")
    )
    return tuple(state.value for state in FAILING) if is_of_failures and not states else states
