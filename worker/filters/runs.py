"""The filters that runs have, wherever runs are listed."""

from __future__ import annotations

import re

from worker import fingerprint
from worker.filters.values import MOMENT, STATUS, TEXT, Field


def _attempts(value: str) -> tuple[int, int | None]:
    """Read ``3``, ``3+`` (at least) or ``2-5``."""
    found = re.fullmatch(r"([0-9]{1,9})(?:(\+)|-([0-9]{1,9}))?", value)
    if not found:
        raise ValueError
    low = int(found[1])
    return low, None if found[2] else int(found[3] or low)


FIELDS: dict[str, Field] = {
    "status": STATUS,
    "type": TEXT,
    "error": TEXT,
    "group": Field(fingerprint.read, "an error group, thirteen digits 0-9 a-f as the page of errors says"),
    "worker": TEXT,
    "key": TEXT,
    "attempts": Field(_attempts, "a number such as 3, or 3+ for at least, or 2-5"),
    "since": MOMENT,
    "until": MOMENT,
    "payload.": TEXT,
    "q": TEXT,
}
