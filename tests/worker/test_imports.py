"""Who may import whom: what keeps the two halves, and the processes, apart."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import ROOT, surroundings

WORKER, DASHBOARD = ROOT / "worker" / "wakeboard", ROOT / "dashboard" / "wakeboard_dashboard"
FRONT_DOORS = ("wakeboard.cli",)


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of each module that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.relative_to(ROOT)} imports by a relative name"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def offenders(folder: Path, *forbidden: str, but: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(folder)
        if not within(".".join(path.with_suffix("").relative_to(ROOT).parts[1:]), *but)
        for name in imports(path)
        if within(name, *forbidden)
    ]


def test_the_worker_knows_neither_flask_nor_the_dashboard() -> None:
    assert offenders(WORKER, "flask", "jinja2") == []
    assert offenders(WORKER, "werkzeug", but=("wakeboard.people.passwords",)) == []
    assert offenders(WORKER, "wakeboard_dashboard", but=FRONT_DOORS) == []


def test_the_dashboard_never_sees_the_worker_at_work() -> None:
    motion = ("supervisor", "loop", "processes", "duties", "schedule", "code_schedules", "effects")
    rooms = (*motion, "cli", "jobs", "embedded")
    shop = ("wakeboard_dashboard.views.demo",)  # The example shop's own page shows its inbox.
    assert offenders(DASHBOARD, *(f"wakeboard.{name}" for name in rooms), but=shop) == []
    assert offenders(DASHBOARD / "views", *(f"wakeboard.{name}" for name in motion)) == []


def test_the_dashboard_writes_only_through_the_workers_moves() -> None:
    assert offenders(DASHBOARD, "wakeboard.transitions.engine") == []
    writes = ("insert(", "update(", "delete(", "INSERT INTO", "UPDATE wakeboard", "DELETE FROM")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in modules(DASHBOARD)
        for line in path.read_text().splitlines()
        if any(f" {word}" in line or f"({word}" in line for word in writes)
    ]
    assert found == []


def test_the_states_import_nothing_of_ours() -> None:
    for name in ("states", "indexed", "settings", "durations", "backoff", "zones"):
        allowed = tuple(
            f"wakeboard.{each}" for each in ("states", "zones", "durations", "setting_values", "os_user")
        )
        ours = [
            found
            for found in imports(WORKER / f"{name}.py")
            if within(found, "wakeboard", "wakeboard_dashboard")
        ]
        assert [found for found in ours if not within(found, *allowed)] == [], name


def test_the_moves_know_no_sqlalchemy_and_no_motion() -> None:
    # Who enqueues through SQLAlchemy has loaded it: there a statement is handed over as its own text.
    by_its_caller = ("wakeboard.transitions.targets",)
    assert offenders(WORKER / "transitions", "sqlalchemy", but=by_its_caller) == []
    assert offenders(WORKER / "transitions", "alembic", "wakeboard.tables", "wakeboard.supervisor") == []


def test_the_tables_import_the_states_and_conditions_of_indexes_alone() -> None:
    allowed = ("wakeboard.states", "wakeboard.indexed")
    ours = [
        name for name in imports(WORKER / "tables.py") if within(name, "wakeboard") and name != "wakeboard"
    ]
    assert ours and [name for name in ours if not within(name, *allowed)] == []


@pytest.mark.parametrize(
    "statement",
    [
        "import wakeboard",
        "import wakeboard.transitions",
        "import wakeboard.supervisor",
        "import wakeboard.processes.child",
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
