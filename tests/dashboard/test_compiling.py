"""Before it forks, the dashboard has its templates compiled, or takes what a start before it compiled."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

import pytest
from jinja2 import Environment, FileSystemLoader, TemplateSyntaxError

from tests.dashboard.apps import an_app
from wakeboard_dashboard.pages import compiling, kept_templates
from wakeboard_dashboard.server import serve


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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where compiled templates are kept, in a folder that is not there yet."""
    return tmp_path / "kept" / "templates.pyc"


def _rendered(environment: Environment, file: Path) -> str:
    compiling.load_templates(environment, file)
    return environment.get_template("a.html").render(x="<")


def _compiles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with each look at what is compiled, which still is."""
    seen: list[int] = []
    compile_all = compiling._compile

    def counted(environment: Environment, names: Sequence[str]) -> dict[str, CodeType]:
        seen.append(len(names))
        return compile_all(environment, names)

    monkeypatch.setattr(compiling, "_compile", counted)
    return seen


def test_a_second_start_takes_what_the_first_compiled(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = _compiles(monkeypatch)
    for _ in range(2):
        assert _rendered(_environment(tmp_path, a="<b>{{ x }}</b>"), file) == "<b>&lt;</b>"
    assert compiled == [1]
    assert list(file.parent.iterdir()) == [file], "nothing half-written is left"


def test_a_changed_template_is_compiled_anew(tmp_path: Path, file: Path) -> None:
    assert _rendered(_environment(tmp_path, a="1{{ x }}"), file) == "1&lt;"
    assert _rendered(_environment(tmp_path, a="2{{ x }}"), file) == "2&lt;"


def test_a_changed_module_has_all_compiled_anew(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = _compiles(monkeypatch)
    module = tmp_path / "formats.py"
    monkeypatch.setattr(kept_templates, "_MODULES", (tmp_path,))
    for text in ("one", "two", "two"):
        module.write_text(text)
        _rendered(_environment(tmp_path, a="{{ x }}"), file)
    assert compiled == [1, 1]


@pytest.mark.parametrize("left", [b"", b"x" * 10, b"x" * 100])
def test_what_is_kept_and_broken_is_compiled_anew(tmp_path: Path, file: Path, left: bytes) -> None:
    environment = _environment(tmp_path, a="1{{ x }}")
    _rendered(environment, file)
    whole = file.read_bytes()
    for broken in (left, whole[:-1], whole[:-1] + b"x"):
        file.write_bytes(broken)
        assert _rendered(_environment(tmp_path, a="1{{ x }}"), file) == "1&lt;"
        assert file.read_bytes() == whole


def test_where_nothing_can_be_kept_or_read_templates_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file where the folder should be")
    assert _rendered(_environment(tmp_path, a="1{{ x }}"), taken / "templates.pyc") == "1&lt;"
    # What an editor leaves beside a module that is open.
    (tmp_path / ".#formats.py").symlink_to("nobody@nowhere")
    monkeypatch.setattr(kept_templates, "_MODULES", (tmp_path,))
    assert _rendered(_environment(tmp_path, a="2{{ x }}"), tmp_path / "other.pyc") == "2&lt;"
    assert not (tmp_path / "other.pyc").exists()


def test_nobody_but_its_owner_may_write_what_is_kept(tmp_path: Path, file: Path) -> None:
    before = os.umask(0)
    try:
        _rendered(_environment(tmp_path, a="1{{ x }}"), file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_package_without_a_version_keeps_nobody_from_starting(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_templates, "_PACKAGES", ("not-installed-anywhere",))
    assert _rendered(_environment(tmp_path, a="1{{ x }}"), file) == "1&lt;"
    assert not file.exists()


def test_a_broken_template_leaves_nothing_behind(tmp_path: Path, file: Path) -> None:
    with pytest.raises(TemplateSyntaxError):
        compiling.load_templates(_environment(tmp_path, good="1", broken="{% if %}"), file)
    assert not file.exists()


def test_the_dashboard_keeps_its_templates_beside_pythons_bytecode_and_only_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    place = kept_templates.place()
    assert place is not None and place.is_relative_to(tmp_path)
    app = serve.Served(lambda: an_app(database_url="postgresql:///nowhere"), {}).load()
    codes = kept_templates.read(
        place, kept_templates.made_of(app.jinja_env, sorted(app.jinja_env.list_templates(["html"])))
    )
    assert codes is not None and len(codes) > 100
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert kept_templates.place() is None
