"""What can be registered, and what is refused with a sentence."""

from __future__ import annotations

import importlib
import re
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wakeboard import Context, job, run_now
from wakeboard.handlers.registry import JOB_TYPES, load_app


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept = dict(JOB_TYPES)
    JOB_TYPES.clear()
    yield
    JOB_TYPES.clear()
    JOB_TYPES.update(kept)


def test_a_handler_stays_callable_and_its_policy_is_json() -> None:
    @job(
        "send",
        timeout="5m",
        lease="2m",
        permanent=(ValueError,),
        backoff="1m,5m",
        schedule="0 2 * * *",
        timezone="Asia/Tokyo",
    )
    def send(ctx: Context) -> str:
        return f"sent {ctx.payload}"

    assert send(Context(payload="it")) == "sent it"
    assert JOB_TYPES["send"].permanent == (ValueError,)
    assert JOB_TYPES["send"].policy() == {
        "name": "send",
        "max_attempts": 10,
        "timeout_seconds": 300.0,
        "backoff": "1m,5m",
        "permanent": ["ValueError"],
        "max_running": None,
        "lease_seconds": 120.0,
        "memory_mb": None,
        "schedule": "0 2 * * *",
        "timezone": "Asia/Tokyo",
        "fresh": False,
    }


def test_one_name_for_two_handlers_names_both_places() -> None:
    @job("twice")
    def first(ctx: Context) -> None: ...

    with pytest.raises(
        ValueError, match=r"called 'twice'.*first.*test_registry\.py:\d+.*second.*Give one of them"
    ):

        @job("twice")
        def second(ctx: Context) -> None: ...

    assert JOB_TYPES["twice"].function is first


def test_registering_the_same_handler_again_is_no_conflict() -> None:
    def handler(ctx: Context) -> None: ...

    job("again")(handler)
    job("again", max_attempts=2)(handler)
    assert JOB_TYPES["again"].max_attempts == 2


def test_one_name_for_two_functions_of_one_name_is_refused_where_both_are_defined_in_one_go() -> None:
    @job("twice")
    def handler(ctx: Context) -> None: ...

    first = handler
    with pytest.raises(ValueError, match="Two handlers are called 'twice'"):

        @job("twice")
        def handler(ctx: Context) -> None: ...

    assert JOB_TYPES["twice"].function is first


HANDLER = """
import functools
from wakeboard import job

def quietly(function):
    @functools.wraps(function)
    def wrapper(ctx):
        return function(ctx)
    return wrapper

class Mail:
    @job("of_a_class")
    def send(ctx):
        return {answer}

@job("edited")
@quietly
def handler(ctx):
    return {answer}
"""


def written(path: Path, text: str) -> None:
    """Write a module, of another size than before: its compiled form may be of the same second."""
    (path / "edited_jobs.py").write_text(text)
    importlib.invalidate_caches()


def test_a_module_that_was_edited_and_is_reloaded_brings_its_handlers_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    written(tmp_path, HANDLER.format(answer=1))
    module = importlib.import_module("edited_jobs")
    try:
        written(tmp_path, "# One line more.\n" + HANDLER.format(answer=22))
        importlib.reload(module)
        for name in ("edited", "of_a_class"):
            assert JOB_TYPES[name].function(Context()) == 22
        assert run_now("edited").result == "22"
        importlib.reload(module)

        again = HANDLER.format(answer=333).partition("class")[2]
        written(tmp_path, HANDLER.format(answer=333) + "\nclass" + again)
        with pytest.raises(ValueError, match="Two handlers are called 'of_a_class'"):
            importlib.reload(module)
    finally:
        del sys.modules["edited_jobs"]


def test_a_module_that_defines_a_function_of_one_name_twice_is_refused_at_its_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    text = HANDLER.format(answer=1)
    written(tmp_path, text + text[text.index('@job("edited")') :])
    with pytest.raises(ValueError, match="Two handlers are called 'edited'"):
        importlib.import_module("edited_jobs")


def test_a_cell_of_a_notebook_may_be_run_again_and_two_handlers_of_one_cell_are_refused() -> None:
    cell = "from wakeboard import job\n@job('in_a_cell')\ndef handler(ctx):\n    return {answer}\n"
    names: dict[str, Any] = {"__name__": "__main__"}
    for number in range(1, 4):
        text = "\n" * number + cell.format(answer=number)
        exec(compile(text, f"/tmp/cell_{number}.py", "exec"), names)
        assert run_now("in_a_cell").result == str(number)
    with pytest.raises(ValueError, match="Two handlers are called 'in_a_cell'"):
        exec(compile(cell.format(answer=1) + cell.format(answer=2), "/tmp/cell_4.py", "exec"), names)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "a\x00", 5, None])
def test_a_name_that_cannot_be_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="A job type cannot be called"):
        job(name)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", True),
        ("max_attempts", 2.5),
        ("timeout", 0),
        ("timeout", "soon"),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", None),
        ("lease", "-5s"),
        ("backoff", "sometimes"),
        ("backoff", 10),
        ("permanent", ("ValueError",)),
        ("permanent", 5),
        ("max_running", 0),
        ("memory_mb", -1),
        ("fresh", 1),
        ("schedule", "  "),
        ("schedule", 5),
        ("schedule", "61 * * * *"),
        ("schedule", "0 2 * *"),
    ],
)
def test_a_wrong_setting_is_a_sentence_at_decoration(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        job("wrong", **{setting: value})
    assert "wrong" not in JOB_TYPES


def test_a_schedule_that_never_comes_is_refused_at_decoration() -> None:
    with pytest.raises(ValueError, match=r"'0 0 31 2 \*' never comes: none of its months has that day"):
        job("wrong", schedule="0 0 31 2 *")
    with pytest.raises(ValueError, match="it would fire at minute 0 alone"):
        job("wrong", schedule="*/90 * * * *")
    assert "wrong" not in JOB_TYPES


def test_a_zone_needs_a_schedule_and_a_name_that_is_known() -> None:
    with pytest.raises(ValueError, match="'Europe/Paris' is the zone of a schedule, and it has none"):
        job("wrong", timezone="Europe/Paris")
    with pytest.raises(ValueError, match="did you mean Europe/Paris"):
        job("wrong", schedule="0 2 * * *", timezone="Europe/Pariss")
    with pytest.raises(ValueError, match="is not a name such as"):
        job("wrong", schedule="0 2 * * *", timezone=2)  # type: ignore[arg-type]
    assert "wrong" not in JOB_TYPES


def test_the_working_folder_comes_before_what_is_installed_and_after_the_standard_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "my_first_jobs.py").write_text(
        "from wakeboard import job\n@job('mine')\ndef mine(ctx): return 'mine'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    load_app("my_first_jobs")
    standard, installed = (sys.path.index(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    assert standard < sys.path.index(str(tmp_path)) < installed
    assert "mine" in JOB_TYPES
    monkeypatch.delitem(sys.modules, "my_first_jobs")


def a_generator(ctx: Context) -> Iterator[int]:
    yield 1


async def an_async_generator(ctx: Context) -> AsyncIterator[int]:
    yield 1


def without_a_parameter() -> None:
    pass


def with_two(ctx: Context, more: int) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (a_generator, "has a `yield`"),
        (an_async_generator, "has a `yield`"),
        (without_a_parameter, "write `def f(ctx)`"),
        (with_two, "write `def f(ctx)`"),
    ],
)
def test_what_a_context_alone_cannot_run_is_no_handler(function: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        job("no_handler")(function)
    assert "no_handler" not in JOB_TYPES


@pytest.mark.parametrize("function", [lambda *contexts: None, lambda ctx, more=1: None, print])
def test_what_takes_a_context_is_a_handler_however_it_is_written(function: Callable[..., Any]) -> None:
    job("a_handler")(function)
    assert JOB_TYPES["a_handler"].function is function
