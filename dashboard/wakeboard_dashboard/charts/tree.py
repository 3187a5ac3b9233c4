"""A payload as a tree: what is shown is redacted, the rest is not read. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from wakeboard.core.text.redaction import HIDDEN, SECRET_KEYS, is_secret_item, redact_text
from wakeboard_dashboard.text.formats import visible

MOST_NODES = 200
MOST_CHILDREN = 50
DEEPEST = 12
LONGEST = 300
# In characters: longer keys and values make no address to share.
LONGEST_FILTER = 100
# Only short branches are open at first; on the first level they may be twice as long.
OPEN_CHILDREN = 10
# A JSON object or list.
Container = Mapping[str, object] | Sequence[object]
_HIDDEN_ITEM = object()


@dataclass(frozen=True, slots=True)
class Node:
    """A name and its value, ``text`` in words or ``children``.

    ``kind``: text, number, word (true, false, null), hidden, object or list. ``size``: how many parts an
    object or list has, of which ``more`` are not shown. ``seek``: (path, value) by which runs with the same
    value are found, None where no filter can say it.
    """

    name: str
    kind: str
    text: str = ""
    children: tuple[Node, ...] = ()
    size: int = 0
    more: int = 0
    is_open: bool = False
    seek: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """The parts of a payload; ``is_cut`` when something of it is not shown."""

    nodes: tuple[Node, ...]
    size: int
    is_cut: bool


def tree(payload: Mapping[str, object]) -> Tree:
    """Return ``payload`` as a tree of at most MOST_NODES nodes; secrets are hidden, long text is cut."""
    builder = _TreeBuilder()
    nodes = tuple(builder.parts(payload, (), 0))
    return Tree(nodes, len(payload), builder.is_cut or len(nodes) < len(payload))


class _TreeBuilder:
    """Builds the nodes of one tree, as many as it may have."""

    def __init__(self) -> None:
        self.left = MOST_NODES
        self.is_cut = False

    def parts(self, value: Container, path: tuple[str, ...], depth: int) -> Iterator[Node]:
        """Yield the nodes of an object or list, as many as there is room for."""
        named = value.items() if isinstance(value, Mapping) else _items(value)
        # A level takes what it may before its branches grow: the first list must not starve the last name.
        taken = list(islice(named, min(MOST_CHILDREN, self.left)))
        self.left -= len(taken)
        for name, each in taken:
            yield self.node(str(name), each, (*path, str(name)), depth)

    def node(self, name: str, value: object, path: tuple[str, ...], depth: int) -> Node:
        """Return the node of one value."""
        if SECRET_KEYS.search(name) or value is _HIDDEN_ITEM:
            return Node(_cut(name), "hidden", HIDDEN)
        if isinstance(value, Mapping | list | tuple):
            return self.branch(name, value, path, depth)
        if isinstance(value, str):
            return self.leaf(name, value, path)
        text = json.dumps(value, default=str)
        self.is_cut |= len(text) > LONGEST
        kind = "word" if value is None or isinstance(value, bool) else "number"
        # A fraction may be written in several ways, and nothing equals null.
        seek = _seek(path, text) if isinstance(value, bool | int) else None
        return Node(_cut(name), kind, _cut(text), seek=seek)

    def branch(self, name: str, value: Container, path: tuple[str, ...], depth: int) -> Node:
        """Return the node of an object or list with its own parts."""
        children = tuple(self.parts(value, path, depth + 1)) if depth < DEEPEST else ()
        more = len(value) - len(children)
        self.is_cut |= more > 0
        # A list of objects is read line by line: its objects are closed.
        is_open = len(value) <= (OPEN_CHILDREN if depth else 2 * OPEN_CHILDREN) and not name.isdigit()
        kind = "object" if isinstance(value, Mapping) else "list"
        return Node(_cut(name), kind, children=children, size=len(value), more=more, is_open=is_open)

    def leaf(self, name: str, value: str, path: tuple[str, ...]) -> Node:
        """Return the node of a text."""
        shown = redact_text(value)
        self.is_cut |= len(shown) > LONGEST
        seek = _seek(path, value) if shown == value else None
        return Node(_cut(name), "text", _cut(shown), seek=seek)


def _items(values: Sequence[object]) -> Iterator[tuple[str, object]]:
    """Yield the items of a list by their places, _HIDDEN_ITEM for what nobody may see."""
    for place, value in enumerate(values):
        yield str(place), _HIDDEN_ITEM if is_secret_item(values, place) else value


def _cut(text: str) -> str:
    """Return the start of ``text``; what is cut is at its end, and redacted before."""
    return visible(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


def _seek(path: tuple[str, ...], value: str) -> tuple[str, str] | None:
    """Return the filter that finds this value again: names without dots, text that an address can carry."""
    plain = all(name and "." not in name for name in path)
    short = 0 < len(value.strip()) == len(value) <= LONGEST_FILTER and len(".".join(path)) <= LONGEST_FILTER
    printable = value.isprintable() and all(name.isprintable() for name in path)
    return (".".join(path), value) if plain and short and printable else None
