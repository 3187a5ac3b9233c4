"""Before it forks, the dashboard has compiled its templates."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemLoader, TemplateSyntaxError

from dashboard import compiling


def _environment(folder: Path, **templates: str) -> Environment:
    for name, source in templates.items():
        (folder / f"{name}.html").write_text(source)
    return Environment(loader=FileSystemLoader(folder), autoescape=True)


def test_templates_compiled_apart_are_in_memory_and_say_the_same(tmp_path: Path) -> None:
    environment = _environment(
        tmp_path, a="<b>{{ x }}</b>", b="{% include 'a.html' %}!", c="{% extends 'b.html' %}"
    )
    compiling.load_templates(environment)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.html").unlink()
    environment.auto_reload = False
    assert environment.get_template("a.html").render(x="<") == "<b>&lt;</b>"
    assert environment.get_template("c.html").render(x="1") == "<b>1</b>!"


def test_nothing_is_compiled_in_the_process_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = _environment(tmp_path, a="1", b="2")
    here = os.getpid()

    def compile_elsewhere(*given: object, **named: object) -> object:
        assert os.getpid() != here
        return Environment.compile(environment, *given, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(environment, "compile", compile_elsewhere)
    compiling.load_templates(environment)


def test_a_broken_template_is_named(tmp_path: Path) -> None:
    environment = _environment(tmp_path, good="1", broken="{% if %}")
    with pytest.raises(TemplateSyntaxError) as raised:
        compiling.load_templates(environment)
    assert raised.value.name == "broken.html"
