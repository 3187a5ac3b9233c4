"""README and ARCHITECTURE are held to the program: tables of states, commands, paths and functions."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from wakeboard.cli import COMMANDS
from wakeboard.core.states import MOVES, STATES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
DOCUMENTS = sorted(
    page
    for folder in (ROOT, ROOT / "docs", ROOT / "benchmarks", ROOT / "tests" / "faults")
    for page in folder.glob("*.md")
)
SOURCES = (ROOT, ROOT / "worker" / "wakeboard", ROOT / "dashboard" / "wakeboard_dashboard")


def test_the_table_of_states_is_the_programs_own() -> None:
    for state in STATES:
        assert f"| `{state.status}` | {state.meaning} | {state.leaves_by} |" in README


def test_the_table_of_moves_is_the_programs_own() -> None:
    for move in MOVES.values():
        sources = ", ".join(move.sources) or "–"
        row = f"| {move.name.replace('_', ' ')} | {move.by} | {sources} | {', '.join(move.targets)} |"
        assert row in README


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    broken = [link for link in links if not link.startswith("http") and not is_there(page, link)]
    assert broken == []


def is_there(page: Path, link: str) -> bool:
    """Return whether ``link`` on ``page`` leads to a file, and to a heading of it where it names one."""
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return False
    prose = re.sub(r"```.*?```", "", target.read_text(), flags=re.DOTALL) if anchor else ""
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return not anchor or anchor in {
        re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings
    }


def test_every_command_the_documents_show_is_a_command() -> None:
    pages = [README, *(page.read_text() for page in (ROOT / "docs").glob("*.md"))]
    shown = {word for page in pages for word in re.findall(r"(?:^|`)wakeboard ([a-z-]+)", page, re.MULTILINE)}
    assert shown
    assert shown - set(COMMANDS) == set()


def paths_of(page: str) -> list[str]:
    """Return the paths that ``page`` names in backticks: folders end in a slash."""
    return sorted(set(re.findall(r"`([\w./-]+(?:/|\.(?:py|html|md|toml)))`", page)))


def functions_of(page: str) -> list[str]:
    """Return the dotted names that ``page`` has in backticks, from a room on."""
    rooms = "|".join(room.name for source in SOURCES[1:] for room in source.iterdir() if room.is_dir())
    return sorted(set(re.findall(rf"`((?:{rooms})(?:\.\w+)+)`", page)))


def resolve(name: str) -> object:
    """Return what ``name`` (room.module.Class.method) is in one of the packages. Raises LookupError."""
    parts = name.split(".")
    for package in ("wakeboard", "wakeboard_dashboard"):
        for length in range(len(parts), 0, -1):
            try:
                found: object = import_module(".".join((package, *parts[:length])))
                for part in parts[length:]:
                    found = getattr(found, part)
            except (ModuleNotFoundError, AttributeError):
                continue
            return found
    raise LookupError(name)


@pytest.mark.parametrize("page", [README, ARCHITECTURE], ids=["README", "ARCHITECTURE"])
def test_every_path_the_pages_name_exists(page: str) -> None:
    paths = paths_of(page)
    assert paths
    assert [path for path in paths if not any((source / path).exists() for source in SOURCES)] == []


@pytest.mark.parametrize("name", functions_of(ARCHITECTURE))
def test_every_function_the_architecture_names_exists(name: str) -> None:
    assert resolve(name) is not None


def test_the_tables_of_rooms_are_the_contracts_of_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = [each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    layers = [
        set(re.findall(r"\.(\w+)", layer)) - {"__main__"} for each in contracts for layer in each["layers"]
    ]
    rows = re.findall(r"^\| \d \| (.+?) \|", ARCHITECTURE, re.MULTILINE)
    assert [set(re.findall(r"`(\w+)(?:/|\.py)`", row)) for row in rows] == layers


def test_the_maps_name_every_room() -> None:
    for source in SOURCES[1:]:
        rooms = {f"{room.name}/" for room in source.iterdir() if (room / "__init__.py").exists()}
        assert rooms - set(paths_of(ARCHITECTURE)) == set()
        assert rooms - set(re.findall(r"^  (\w+/) ", README, re.MULTILINE)) == set()
