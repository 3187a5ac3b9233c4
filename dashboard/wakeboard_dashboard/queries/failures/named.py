"""What the groups of failures are called, remembered: a number is a hash of its words, which never change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from sys import intern

from sqlalchemy import Connection, text

from wakeboard_dashboard.queries.groups import Sameness

# Of so many groups the words are remembered, some 200 bytes of each and its message.
MOST_NAMED = 3_000

Types = Mapping[Sameness, Sequence[str]]

_WORDS = text("""
SELECT id, error_code, job_type, template, frame FROM wakeboard.error_groups
WHERE id = ANY (CAST(:numbers AS bigint[]))
""")


@dataclass(frozen=True, slots=True)
class Words:
    """What a group is: the code and type of its failures, and what it has in common with other types'."""

    code: str
    job_type: str
    same: Sameness


class Names:
    """The words of groups that were counted lately."""

    def __init__(self) -> None:
        self._known: dict[int, Words] = {}
        self._types: tuple[Collection[int], Types] = ((), {})

    def of(self, connection: Connection, numbers: AbstractSet[int]) -> Mapping[int, Words] | None:
        """Return the words of these groups, and of others; None where one has none, and for too many."""
        if len(numbers) > MOST_NAMED:
            return None
        known = self._known
        if unknown := numbers - known.keys():
            found = _words(connection, unknown)
            if len(found) < len(unknown):
                return None
            known = known | found
            if len(known) > MOST_NAMED:
                known = {number: known[number] for number in numbers}
            self._known = known
        return known

    def types(self, words: Mapping[int, Words], numbers: AbstractSet[int]) -> Types:
        """Return the types of the groups ``numbers`` by what failed, in order."""
        known = self._types
        if known[0] != numbers:
            found: dict[Sameness, list[str]] = {}
            for number in numbers:
                found.setdefault(words[number].same, []).append(words[number].job_type)
            known = self._types = numbers, {same: sorted(types) for same, types in found.items()}
        return known[1]


def _words(connection: Connection, numbers: Collection[int]) -> dict[int, Words]:
    found: dict[int, Words] = {}
    alike: dict[Sameness, Sameness] = {}
    for number, code, job_type, template, frame in connection.execute(_WORDS, {"numbers": list(numbers)}):
        same = intern(code), intern(template), frame if frame is None else intern(frame)
        found[number] = Words(same[0], intern(job_type), alike.setdefault(same, same))
    return found
