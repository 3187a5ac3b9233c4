"""Jinja as pages of some thousand values need it: the same HTML as Jinja's own, in less time.

Three things cost most: a ``Markup`` of each value that is only to be joined, the exception that tells Jinja
that a column of a row is no attribute, and macros that give the same piece again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from flask.templating import Environment
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from markupsafe import Markup
from sqlalchemy import RowMapping

from dashboard.formats import html

# The pieces of a page are a few hundred; what they say may be anybody's text.
_MOST_PIECES = 2000


def remembered(macro: Callable[..., Markup]) -> Callable[..., Markup]:
    """Return ``macro``, which must depend on its arguments alone, with a memory of what it gave.

    Text and ``Markup`` that are equal are told apart: one of them is escaped, the other is not.
    """
    return lru_cache(_MOST_PIECES, typed=True)(lambda *given, **named: macro(*given, **named))


class _Generator(CodeGenerator):
    """Writes values out by ``html`` where Jinja would by ``escape``."""

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or not frame.eval_ctx.autoescape or finalize.src is not None:
            super()._output_child_pre(node, frame, finalize)
        else:
            self.write("environment.html(")


class Pages(Environment):
    """The environment of all templates."""

    code_generator_class = _Generator
    html = staticmethod(html)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return what ``obj.attribute`` is in a template; of a row, its column before anything else."""
        if type(obj) is RowMapping:
            try:
                return obj[attribute]
            except KeyError:
                pass
        return super().getattr(obj, attribute)
