"""Jinja as pages of some thousand values need it: the same HTML as Jinja's own, in less time.

Four things cost most: a ``Markup`` of each value that is only to be joined, the exception that tells Jinja
that a column of a row is no attribute, the look at each function for what Jinja is to hand it, and macros
that give the same piece again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from flask.templating import Environment
from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import TemplateModule
from jinja2.runtime import Context, Macro
from markupsafe import Markup
from sqlalchemy import RowMapping

from wakeboard_dashboard.text.formats import html

# The pieces of a page are a few hundred; what they say may be anybody's text.
_MOST_PIECES = 2000
# A page has fifty rows; each is as long as a hundred pieces.
_MOST_ROWS = 128
# Stands for a number while the text around it is made; no text of a database holds it.
_NUMBER = "\0"
_PLAIN = frozenset({FunctionType, MethodType, BuiltinMethodType, type(lru_cache(len))})


def remembered(macro: Callable[..., Markup], most: int = _MOST_PIECES) -> Callable[..., Markup]:
    """Return ``macro``, which must depend on its arguments alone, with a memory of the ``most`` it gave last.

    Text and ``Markup`` that are equal are told apart: one of them is escaped, the other is not.
    """
    return lru_cache(most, typed=True)(lambda *given, **named: macro(*given, **named))


def numbered(macro: Callable[..., Markup], most: int = _MOST_PIECES) -> Callable[..., Markup]:
    """Return ``macro``, which writes its first argument, a whole number, as it is, with a memory of the rest.

    Kept is what it writes around the number for its other arguments, on which alone it must depend.
    """
    around = lru_cache(most, typed=True)(lambda *given: macro(_NUMBER, *given).split(_NUMBER))

    def written(number: int, *given: Any) -> Markup:
        return Markup(f"{number:d}".join(around(*given)))

    return written


class _Line:
    """A row of a table, equal to another that has the same ``told``."""

    __slots__ = ("row", "told")

    def __init__(self, row: RowMapping, told: tuple[Any, ...]) -> None:
        self.row, self.told = row, told

    def __hash__(self) -> int:
        return hash(self.told)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Line) and self.told == other.told


def of_row(
    macro: Callable[..., Markup], columns: Sequence[str] | None = None, most: int = _MOST_ROWS
) -> Callable[..., Markup]:
    """Return ``macro``, which writes its first argument, a row, with a memory of the ``most`` it gave last.

    It must depend on its arguments alone, and of the row on what its ``columns`` tell, which must be
    hashable; None: all of them.
    """
    which = (lambda row: tuple(row.values())) if columns is None else itemgetter(*columns)
    kept = lru_cache(most, typed=True)(lambda line, *given: macro(line.row, *given))

    def written(row: RowMapping, *given: Any) -> Markup:
        return kept(_Line(row, which(row)), *given)

    return written


class _Generator(CodeGenerator):
    """Writes values out by ``html`` where Jinja would by ``escape``."""

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or not frame.eval_ctx.autoescape or finalize.src is not None:
            super()._output_child_pre(node, frame, finalize)
        else:
            self.write("environment.html(")


class _Context(Context):
    """Calls macros and plain functions at once; whatever else is called, Jinja looks at."""

    def call(self, called: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        kind = type(called)
        if kind is Macro:
            given = (self.eval_ctx, *given)
        elif kind not in _PLAIN or hasattr(called, "jinja_pass_arg"):
            return super().call(called, *given, **named)
        named.pop("_loop_vars", None)
        named.pop("_block_vars", None)
        return called(*given, **named)


class _Template(Template):
    """Gives its macros without comparing who imports them: all templates have the same globals."""

    def _get_default_module(self, ctx: Context | None = None) -> TemplateModule:
        return super()._get_default_module()


class Pages(Environment):
    """The environment of all templates."""

    code_generator_class = _Generator
    context_class = _Context
    template_class = _Template
    html = staticmethod(html)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return what ``obj.attribute`` is in a template; of a row, its column before anything else."""
        if type(obj) is RowMapping:
            try:
                return obj[attribute]
            except KeyError:
                pass
        # As Jinja does first; a page has some thousand, and this is one call less for each.
        try:
            return getattr(obj, attribute)
        except AttributeError:
            return super().getattr(obj, attribute)
