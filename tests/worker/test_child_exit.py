"""The table of reasons for which a child ends names what exists."""

from __future__ import annotations

import re

import pytest

from tests.support.processes import ROOT
from wakeboard.config.settings import SETTINGS
from wakeboard.runtime.processes import child_exit

TABLE = str(child_exit.__doc__)


@pytest.mark.parametrize("setting", sorted(set(re.findall(r"WAKEBOARD_\w+", TABLE))))
def test_a_setting_of_the_table_exists(setting: str) -> None:
    assert setting in {known.variable for known in SETTINGS}


@pytest.mark.parametrize("path", sorted(set(re.findall(r"runtime/\w+/\w+\.py", TABLE))))
def test_a_module_of_the_table_exists(path: str) -> None:
    assert (ROOT / "worker" / "wakeboard" / path).is_file()


@pytest.mark.parametrize("code", sorted(set(re.findall(r"(?:fails|reaped): (\w+)", TABLE))))
def test_an_error_code_of_the_table_is_documented(code: str) -> None:
    assert f"`{code}`" in (ROOT / "docs" / "handlers.md").read_text()
