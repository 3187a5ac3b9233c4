"""What keeps the two halves, and the processes, apart. Who may import whom stands in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, surroundings

WORKER, DASHBOARD = ROOT / "worker" / "wakeboard", ROOT / "dashboard" / "wakeboard_dashboard"


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def test_the_dashboard_writes_only_through_the_workers_moves() -> None:
    writes = ("insert(", "update(", "delete(", "INSERT INTO", "UPDATE wakeboard", "DELETE FROM")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in modules(DASHBOARD)
        for line in path.read_text().splitlines()
        if any(f" {word}" in line or f"({word}" in line for word in writes)
    ]
    assert found == []


@pytest.mark.parametrize(
    "statement",
    [
        "import wakeboard",
        "import wakeboard.queue",
        "import wakeboard.runtime.supervisor",
        "import wakeboard.runtime.processes.child",
    ],
)
def test_a_light_process_loads_neither_sqlalchemy_nor_flask(statement: str) -> None:
    heavy = (
        "[n for n in ('sqlalchemy', 'flask', 'alembic', 'jinja2', 'wakeboard_dashboard') if n in sys.modules]"
    )
    said = subprocess.run(
        [sys.executable, "-c", f"import sys; {statement}; print({heavy})"],
        cwd="/",
        env=surroundings(None),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (said.stdout.strip(), said.returncode) == ("[]", 0), said.stderr


@pytest.mark.parametrize("word", ["utils", "helpers", "common", "manager", "service", "base"])
def test_no_module_has_a_name_that_says_nothing(word: str) -> None:
    named = [path for folder in (WORKER, DASHBOARD) for path in modules(folder) if path.stem == word]
    assert named == []
