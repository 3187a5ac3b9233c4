"""Templates: foreign text is escaped, a missing name is an error, compiled code is kept where possible."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from flask import Flask, render_template_string
from flask.testing import FlaskClient
from jinja2 import Environment, FileSystemLoader, TemplateSyntaxError, UndefinedError
from markupsafe import Markup, escape
from sqlalchemy import text

from wakeboard_dashboard.pages import templates

VALUES = ("<b>", "a & b", "'", '"', "<" * 300, "plain", "", Markup("<b>safe</b>"), 7, -1, 1.5, True, None)


@pytest.mark.parametrize("value", VALUES)
def test_a_template_escapes_values(value: object, client: FlaskClient) -> None:
    with client.application.test_request_context("/"):
        assert render_template_string("{{ x }}", x=value) == str(escape(value))


def test_a_missing_name_is_an_error(client: FlaskClient) -> None:
    with client.application.test_request_context("/"), pytest.raises(UndefinedError):
        render_template_string("{{ missing }}")


def test_a_column_is_read_from_a_row(app: Flask) -> None:
    with app.extensions["wakeboard_database"].primary.connect() as session:
        row = session.execute(text("SELECT 7 AS id, 'a' AS name")).mappings().one()
    with app.test_request_context("/"):
        assert render_template_string("{{ row.id }} {{ row.name }}", row=row) == "7 a"


def test_a_badge_escapes_a_foreign_word(client: FlaskClient) -> None:
    with client.application.test_request_context("/"):
        badge = client.application.jinja_env.get_template("macros.html").module.badge  # type: ignore[attr-defined]
        assert re.search("</svg>&lt;x&gt;</span>", badge("dead", "<x>"))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where compiled templates are kept, as if the module stood in an empty one."""
    monkeypatch.setattr(templates, "__file__", str(tmp_path / "pages" / "templates.py"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path / "pages" / "__pycache__" / "templates"


def _environment(folder: Path, **sources: str) -> Environment:
    for name, source in sources.items():
        (folder / f"{name}.html").write_text(source)
    return Environment(
        loader=FileSystemLoader(folder), autoescape=True, bytecode_cache=templates.cache(), auto_reload=False
    )


def test_compiled_templates_are_kept_beside_the_modules(kept: Path, tmp_path: Path) -> None:
    templates.load_all(_environment(tmp_path, a="<b>{{ x }}</b>", b="{% include 'a.html' %}"))
    assert len(list(kept.iterdir())) == 2


def test_a_changed_template_is_compiled_again(kept: Path, tmp_path: Path) -> None:
    for number in "12":
        environment = _environment(tmp_path, a=f"{number}{{{{ x }}}}")
        assert environment.get_template("a.html").render(x="<") == f"{number}&lt;"


def test_templates_are_compiled_where_nothing_can_be_kept(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = _environment(tmp_path, a="1")
    kept.rmdir()
    assert environment.get_template("a.html").render() == "1"
    kept.parent.rmdir()
    kept.parent.write_text("no folder")
    assert templates.cache() is None
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert templates.cache() is None


def test_a_broken_template_is_named(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(TemplateSyntaxError) as raised:
        templates.load_all(_environment(tmp_path, good="1", broken="{% if %}"))
    assert raised.value.name == "broken.html"
