"""The README is held to the program: its tables to core.states, its commands to the command line."""

from __future__ import annotations

import re
from pathlib import Path

from wakeboard.cli import COMMANDS
from wakeboard.core.states import MOVES, STATES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_table_of_states_is_the_programs_own() -> None:
    for state in STATES:
        assert f"| `{state.status}` | {state.meaning} | {state.leaves_by} |" in README


def test_the_table_of_moves_is_the_programs_own() -> None:
    for move in MOVES.values():
        sources = ", ".join(move.sources) or "–"
        row = f"| {move.name.replace('_', ' ')} | {move.by} | {sources} | {', '.join(move.targets)} |"
        assert row in README


def test_every_file_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_command_the_documents_show_is_a_command() -> None:
    pages = [README, *(page.read_text() for page in (ROOT / "docs").glob("*.md"))]
    shown = {word for page in pages for word in re.findall(r"(?:^|`)wakeboard ([a-z-]+)", page, re.MULTILINE)}
    assert shown
    assert shown - set(COMMANDS) == set()
