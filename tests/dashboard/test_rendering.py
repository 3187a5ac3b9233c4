"""Templates: foreign text is escaped, a missing name is an error, compiled code is kept where possible."""

from __future__ import annotations

import re
import stat
import tempfile
from pathlib import Path

import pytest
from flask import Flask, render_template_string
from flask.testing import FlaskClient
from jinja2 import Environment, FileSystemLoader, TemplateSyntaxError, UndefinedError
from markupsafe import Markup, escape
from sqlalchemy import text

from wakeboard_dashboard.pages import bytecode

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
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def _environment(folder: Path, **templates: str) -> Environment:
    for name, source in templates.items():
        (folder / f"{name}.html").write_text(source)
    return Environment(
        loader=FileSystemLoader(folder), autoescape=True, bytecode_cache=bytecode.cache(), auto_reload=False
    )


def test_compiled_templates_are_kept_for_their_owner_alone(temporary: Path, tmp_path: Path) -> None:
    bytecode.load_all(_environment(tmp_path, a="<b>{{ x }}</b>"))
    (folder,) = temporary.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IRWXU
    assert len(list(folder.iterdir())) == 1


def test_a_changed_template_is_compiled_again(temporary: Path, tmp_path: Path) -> None:
    for number in "12":
        environment = _environment(tmp_path, a=f"{number}{{{{ x }}}}")
        assert environment.get_template("a.html").render(x="<") == f"{number}&lt;"


def test_templates_are_compiled_where_nothing_can_be_kept(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = _environment(tmp_path, a="1")
    (folder,) = temporary.iterdir()
    folder.rmdir()
    assert environment.get_template("a.html").render() == "1"
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "nothing" / "here"))
    assert bytecode.cache() is None


def test_a_broken_template_is_named(temporary: Path, tmp_path: Path) -> None:
    with pytest.raises(TemplateSyntaxError) as raised:
        bytecode.load_all(_environment(tmp_path, good="1", broken="{% if %}"))
    assert raised.value.name == "broken.html"
