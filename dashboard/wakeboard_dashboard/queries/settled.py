"""Answers about what cannot change any more, from one request to the next. Knows no database, no request."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

# So many answers about settled windows are kept: eight or nine for each.
MOST_SETTLED = 48
Answer = TypeVar("Answer")


class Settled:
    """Answers about windows that cannot change any more, the latest of them."""

    def __init__(self, most: int = MOST_SETTLED) -> None:
        """``most``: so many answers are kept."""
        self._most = most
        self._kept: dict[Hashable, tuple[Hashable, object]] = {}

    def get(self, question: Hashable, ask: Callable[[], Answer], mark: Hashable = None) -> Answer:
        """Return the answer to ``question``, asked for when it is not known, or known under another mark."""
        kept = self._kept.get(question)
        if kept is not None and kept[0] == mark:
            return cast(Answer, kept[1])
        found = ask()
        self._kept[question] = (mark, found)
        for oldest in list(self._kept)[: -self._most]:
            self._kept.pop(oldest, None)
        return found
