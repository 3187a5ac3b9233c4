"""The filters that runs have, wherever runs are listed."""

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
    """Read ``3``, ``3+`` (at least) or ``2-5``; none is in ``5-2``."""
    found = re.fullmatch(r"([0-9]{1,9})(?:(\+)|-([0-9]{1,9}))?", value)
    if not found:
        raise ValueError
    low = int(found[1])
    high = int(found[3] or low)
    if high < low:
        raise FilterError(f"“attempts” is {value}: a range begins with the smaller number, {high}-{low}.")
    return low, None if found[2] else high


def _schedule(value: str) -> str | int:
    """Read a schedule's name, or ``#17``, the number of one: a name may be taken again, a number is not."""
    if re.fullmatch(r"#[0-9]{1,19}", value):
        return identifier(value[1:])
    if not re.fullmatch(r"[a-z0-9_-]{1,100}", value):
        raise ValueError
    return value


def _group(value: str) -> int:
    """Read an error group. None has the number 0, which a search would take for no filter at all."""
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
# When the last failure of a run lies: since and until say when it was enqueued.
FAILED = ("failed-since", "failed-until")


def states_of(asked: FilterValues) -> Sequence[str]:
    """Return the states in which ``asked`` looks, none for all.

    Without a status, an error or the time of a failure means runs that fail now; a group all that failed so.
    """
    wanted: Sequence[str] = asked.get("status") or ()
    is_of_failures = asked.get("error") or (any(map(asked.get, FAILED)) and not asked.get("group"))
    return tuple(state.value for state in FAILING) if is_of_failures and not wanted else wanted
