"""Which addresses tokens for some job types may use: declared beside each page and verb, else none.

    add_page(blueprint, "/runs/<id:run_id>", …, scope=Scope.RUN)

``wakeboard_dashboard.web.security`` enforces these marks.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

View = TypeVar("View", bound=Callable[..., object])
_MARK = "wakeboard_scope"


class Scope(Enum):
    """Whose an address is, and so for which tokens."""

    RUN = "of the run that the path names as run_id: for tokens of that run's type"
    TYPE = "of the type that the path names as name: for tokens of that type"
    OWN = "for every token: what it answers or does is narrowed to the types of ``g.actor`` by itself"
    NO_TYPE = "for every token: it tells of no type"


def declare(view: View, scope: Scope | None) -> View:
    """Return ``view``, marked with its ``scope``; with None it stays closed."""
    if scope is not None:
        setattr(view, _MARK, scope)
    return view


def scoped(scope: Scope) -> Callable[[View], View]:
    """Return the decorator that marks a view with ``scope``; it stands below the route."""
    return lambda view: declare(view, scope)


def declared(view: Callable[..., object]) -> Scope | None:
    """Return the scope that ``view`` was marked with, None when nobody did."""
    scope = getattr(view, _MARK, None)
    return scope if isinstance(scope, Scope) else None
