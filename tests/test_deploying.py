"""The units for systemd: accepted by systemd itself, and true to the product's own times."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from wakeboard.config.settings import Settings
from wakeboard.database.embedded.server import STOP_SECONDS

UNITS = sorted((ROOT / "packaging" / "systemd").glob("*.service"))
ANALYZE = shutil.which("systemd-analyze")


def value(unit: Path, name: str) -> str:
    found = re.findall(rf"^{name}=(.*)$", unit.read_text(), re.M)
    assert len(found) == 1, (unit.name, name, found)
    return str(found[0])


def test_there_is_a_unit_for_each_way_to_run() -> None:
    assert [unit.name for unit in UNITS] == [
        "wakeboard-web.service",
        "wakeboard-worker.service",
        "wakeboard.service",
    ]


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        text = unit.read_text().replace("/opt/wakeboard/bin/wakeboard", "/bin/true")
        text = re.sub(r"^(User|Group)=.*$", r"\1=root", text, flags=re.M)
        (tmp_path / unit.name).write_text(text)
    said = subprocess.run(
        [str(ANALYZE), "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    ours = [line for line in said.stderr.splitlines() if "wakeboard" in line]
    assert (said.returncode, ours) == (0, []), said.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_gives_the_end_in_order_enough_time(unit: Path) -> None:
    patience = int(value(unit, "TimeoutStopSec"))
    own = Settings.load({}, environ={}).shutdown_seconds
    assert patience > own + (STOP_SECONDS if unit.stem == "wakeboard" else 0)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_killed_child_does_not_take_the_unit_with_it(unit: Path) -> None:
    assert value(unit, "OOMPolicy") == "continue"
    assert value(unit, "KillMode") == "mixed"
    assert value(unit, "Restart") == "always"
    assert value(unit, "NoNewPrivileges") == "yes"
    assert "Delegate=yes" not in unit.read_text()


def test_the_page_names_the_units_that_exist() -> None:
    page = (ROOT / "docs" / "deploying.md").read_text()
    assert all(unit.name in page for unit in UNITS)
