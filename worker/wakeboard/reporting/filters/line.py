"""Reads and writes filters as one line of text: ``status:failed since:24h "no answer"``. Pure.

An operator types such a line in the search field of a page or behind ``wakeboard runs``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from wakeboard.reporting.filters.values import FilterError

# The filter of words without a name.
WORDS = "q"
_TOKEN = re.compile(r'(?:([a-zA-Z_][\w.-]*):)?(?:"([^"]*)"|([^\s"]+))')
_NAME = re.compile(r"([a-zA-Z_][\w.-]*)(:|=.*)")
_NOT = re.compile(r"[-!+^~]([a-zA-Z_][\w.-]*)[:=].*")


def read_line(line: str, names: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the (name, text) pairs of ``line``; words without a name are the filter ``q``.

    Text in quotes may have spaces and colons: ``"http://crm"``. ``names`` are the existing filters
    (``payload.`` for every ``payload.<path>``): what looks like a misspelt use of one of them is not taken
    for text. Raises FilterError.
    """
    if line.count('"') % 2:
        raise FilterError(f"The filter “{line[:100]}” opens a quote and does not close it.")
    pairs: list[tuple[str, str]] = []
    words: list[str] = []
    for name, quoted, bare in _TOKEN.findall(line):
        value = quoted or bare
        if name:
            pairs.append((name, value))
        else:
            _refuse_misspelt(bare, names)
            words.append(value)
        if not value:
            empty = f'{name}:""' if name else '""'
            raise FilterError(f"“{empty[:100]}” is empty: write text between the quotes, or leave it out.")
    if words:
        before = [value for name, value in pairs if name == WORDS]
        pairs = [pair for pair in pairs if pair[0] != WORDS]
        pairs.append((WORDS, " ".join([*before, *words])))
    return pairs


def _refuse_misspelt(bare: str, names: Collection[str]) -> None:
    """Refuse ``status=dead``, ``-status:dead`` and ``status:`` alone: as text they would find nothing."""
    negated = _NOT.fullmatch(bare)
    if negated and _is_among(negated[1], names):
        raise FilterError(
            f"“{bare[:100]}”: there is no filter for what is not so; name what shall be, several by commas "
            f'(status:queued,running). Text is in quotes: "{bare[:100]}".'
        )
    match = _NAME.fullmatch(bare)
    if match is None or not _is_among(match[1], names):
        return
    name, rest = match[1][:100], match[2][1:][:100]
    if name.endswith(".") or f"{name}." in names:
        prefix = f"{name.rstrip('.')}."
        raise FilterError(
            f"“{bare[:100]}” names nothing: write {prefix}<path>, such as {prefix}customer.id:7."
        )
    if match[2] == ":":
        raise FilterError(f"“{name}:” is followed by nothing: write the value right behind the colon.")
    raise FilterError(f'“{name}={rest}”: a filter is {name}:{rest}, text is in quotes: "{name}={rest}".')


def _is_among(name: str, names: Collection[str]) -> bool:
    return name in names or f"{name.partition('.')[0]}." in names


def write_line(texts: Mapping[str, str]) -> str:
    """Return the line that means the canonical ``texts``: read again, it asks for the same."""
    parts = [f"{name}:{_quoted(value)}" for name, value in texts.items() if name != WORDS]
    words = texts.get(WORDS)
    return " ".join([*parts, *([_quoted(words, alone=True)] if words else [])])


def _quoted(value: str, *, alone: bool = False) -> str:
    """Return ``value`` so that it is read as one word; a quote in it cannot be written and becomes ``'``."""
    value = value.replace('"', "'")
    needed = re.search(r"[:=]|\s\s|^\s|\s$|[^\S ]", value) if alone else re.search(r"\s", value)
    return f'"{value}"' if needed or not value else value
