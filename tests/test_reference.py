"""The page of reference says what the library takes, and every setting."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from click import Context, Option

import wakeboard
from tests.support.processes import ROOT
from wakeboard.cli import Root
from wakeboard.config.settings import SETTINGS

PAGE = ROOT / "docs" / "reference.md"
# What stands for a default that the machine decides.
MADE = {
    "data_dir": "`/var/lib/wakeboard` as root, else `~/.local/share/wakeboard`",
    "concurrency": "one for each core, 2 at least",
    "heartbeat_seconds": "a third of the lease",
}


def _shown(default: object) -> str:
    if default is None:
        return ""
    return f"`{int(default)}`" if isinstance(default, bool) else f"`{_plain(default)}`"


def _plain(default: object) -> object:
    return f"{default:g}" if isinstance(default, float) else default


def _words(cell: str) -> str:
    """Return the text of a cell without its links and code marks."""
    return re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cell).replace("`", "")


def test_the_page_has_every_setting_with_what_it_is_for_and_takes() -> None:
    rows = re.findall(r"^\| (`WAKEBOARD_.*?) \| (.+?) \| (.*?) \| (.*?) ?\|$", PAGE.read_text(), re.M)
    assert [(name, _words(purpose), takes, default) for name, purpose, takes, default in rows] == [
        (
            f"`{setting.variable}` `{setting.flag}`",
            setting.purpose,
            setting.allowed,
            MADE.get(setting.name) or _shown(setting.default),
        )
        for setting in SETTINGS
    ]


def test_the_page_has_every_flag_of_what_serves_that_is_no_setting() -> None:
    rows = re.findall(r"^\| `(up|worker|tick|web) (--[\w-]+)` \| (.+?) \|$", PAGE.read_text(), re.M)
    settings = {setting.flag for setting in SETTINGS}
    assert rows == [
        (name, option.opts[0], option.help)
        for name in ("up", "worker", "tick", "web")
        for option in Root().get_command(Context(Root()), name).params
        if isinstance(option, Option) and option.opts[0] not in {"--json", *settings}
    ]


@pytest.mark.parametrize(
    ("function", "head", "unsaid"),
    [(wakeboard.enqueue, "## Enqueue", ()), (wakeboard.job, "## Handlers", ("name",))],
    ids=["enqueue", "job"],
)
def test_the_page_has_every_argument_with_its_default(
    function: Callable[..., Any], head: str, unsaid: tuple[str, ...]
) -> None:
    table = PAGE.read_text().partition(head)[2].partition("|---|---|---|\n")[2].partition("\n\n")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| ?(.*?) ?\|", table, re.M))
    defaults = {
        name: "" if argument.default is argument.empty else f"`{argument.default!r}`"
        for name, argument in inspect.signature(function).parameters.items()
        if name not in unsaid
    }
    assert told == defaults


def test_the_page_names_all_that_can_be_imported() -> None:
    page = PAGE.read_text()
    assert [name for name in wakeboard.__all__ if not re.search(rf"\b{name}\b", page)] == []


def test_the_page_names_all_that_a_context_has() -> None:
    public = [name for name in dir(wakeboard.Context) if not name.startswith("_")]
    public += [name for name in vars(wakeboard.Context()) if not name.startswith("_")]
    inside = {
        "ask_cancel", "committed", "definition_id", "effect_store", "for_assignment", "lease_epoch",
        "progress_done", "progress_total", "traceparent", "worker_id",
    }  # fmt: skip
    page = PAGE.read_text()
    assert [name for name in public if name not in inside and f"`{name}" not in page] == []
