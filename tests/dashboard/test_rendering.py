"""Templates are rendered as Jinja would by itself, in less time: what is foreign is escaped all the same."""

from __future__ import annotations

import re

import pytest
from flask import Flask
from flask.templating import Environment
from flask.testing import FlaskClient
from jinja2 import StrictUndefined, UndefinedError, pass_context, pass_eval_context
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from markupsafe import Markup, escape
from sqlalchemy import RowMapping, text

from wakeboard_dashboard.pages.rendering import Pages, numbered, of_row, remembered
from wakeboard_dashboard.text.formats import html

HOSTILE = ("<b>", "a & b", "'", '"', "<" * 300, "plain", "", Markup("<b>safe</b>"), 7, -1, 1.5, True, None)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_is_escaped_as_by_markupsafe(value: object) -> None:
    assert html(value) == str(escape(value))


@pytest.mark.parametrize("value", HOSTILE)
def test_a_template_writes_what_jinja_would(value: object, client: FlaskClient) -> None:
    source = (
        "{{ x }}|{% set y %}{{ x }}!{% endset %}{{ y }}|"
        "{% macro m(z) %}<i>{{ z }}</i>{% endmacro %}{{ m(x) }}|{{ x ~ y }}"
    )
    pages = Pages(client.application, undefined=StrictUndefined, autoescape=True)
    usual = Environment(client.application, autoescape=True)
    assert pages.from_string(source).render(x=value) == usual.from_string(source).render(x=value)


def test_what_is_not_there_is_an_error(client: FlaskClient) -> None:
    pages = Pages(client.application, undefined=StrictUndefined, autoescape=True)
    with pytest.raises(UndefinedError):
        pages.from_string("{{ missing }}").render()


def test_a_remembered_macro_tells_text_from_markup() -> None:
    macro = remembered(lambda word: Markup("<i>{}</i>").format(word))
    assert macro(Markup("<b>")) == "<i><b></i>"
    assert macro("<b>") == "<i>&lt;b&gt;</i>"
    assert macro(Markup("<b>")) == "<i><b></i>"


def test_a_numbered_macro_is_rendered_once_for_all_numbers() -> None:
    rendered: list[str] = []

    def macro(number: object, word: str) -> Markup:
        rendered.append(word)
        return Markup('<i id="{0}">{1} {0}</i>').format(number, word)

    written = numbered(macro)
    assert [written(number, "<b>") for number in (7, 8)] == [
        f'<i id="{number}">&lt;b&gt; {number}</i>' for number in (7, 8)
    ]
    assert isinstance(written(9, "<b>"), Markup) and rendered == ["<b>"]
    with pytest.raises(ValueError):
        written("<b>", "no number")


def test_a_macro_of_a_row_is_rendered_once_for_rows_that_say_the_same(app: Flask) -> None:
    rendered: list[int] = []

    def macro(row: RowMapping, word: str) -> Markup:
        rendered.append(row["id"])
        return Markup("<i>{} {}</i>").format(row["name"], word)

    def row(number: int, name: str) -> RowMapping:
        statement = text("SELECT CAST(:id AS int) AS id, :name AS name, CAST('{}' AS jsonb) AS extra")
        with app.extensions["wakeboard_database"].primary.connect() as session:
            return session.execute(statement, {"id": number, "name": name}).mappings().one()

    written = of_row(macro, ("id", "name"))
    assert [written(row(7, name), "<b>") for name in ("a", "a", "<u>")] == [
        "<i>a &lt;b&gt;</i>", "<i>a &lt;b&gt;</i>", "<i>&lt;u&gt; &lt;b&gt;</i>",
    ]  # fmt: skip
    assert rendered == [7, 7]
    assert written(row(7, "a"), Markup("<b>")) == "<i>a <b></i>" and len(rendered) == 3
    with pytest.raises(TypeError):
        of_row(macro)(row(8, "a"), "what its columns say must be hashable")


def test_badges_of_foreign_words_are_escaped_each_time(client: FlaskClient) -> None:
    with client.application.test_request_context("/"):
        badge = client.application.jinja_env.get_template("macros.html").module.badge  # type: ignore[attr-defined]
        for _ in range(2):
            assert re.search("</svg>&lt;x&gt;</span>", badge("dead", "<x>"))


def test_functions_are_handed_what_jinja_would_hand_them(client: FlaskClient) -> None:
    class Kind:
        """Callable itself, and by a method."""

        def __call__(self, word: str) -> str:
            return f"called {word}"

        def told(self, word: str) -> str:
            return f"told {word}"

    @pass_context
    def seen(context: Context, word: str) -> str:
        return f"{word} in {context['x']} at {context.get('place')}"

    @pass_eval_context
    def is_escaped(found: EvalContext) -> bool:
        return found.autoescape

    source = (
        "{% macro m(a, b=2) %}<i>{{ a }}{{ b }}{{ caller('<') if caller is defined }}</i>{% endmacro %}"
        "{% for place in (1, 2) %}{{ m(place) }}{{ m(b='<', a=place) }}{{ seen('here') }}{{ is_escaped() }}"
        "{{ kind('<') }}{{ kind.told(word='<') }}{{ x.upper() }}{{ again('<') }}"
        "{% call(y) m(place) %}{{ y }}{{ place }}{% endcall %}{% endfor %}"
    )
    given = {"x": "<x>", "kind": Kind(), "seen": seen, "is_escaped": is_escaped, "again": remembered(escape)}
    pages = Pages(client.application, undefined=StrictUndefined, autoescape=True)
    usual = Environment(client.application, autoescape=True)
    assert pages.from_string(source).render(**given) == usual.from_string(source).render(**given)
