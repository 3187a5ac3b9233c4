"""In what order the check begins its files, several of them at a time: pure, nothing is run here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# Those that take most of a minute or more, the longest first: begun late, one of them alone would hold up the
# end of the whole run.
LONGEST = (
    "browser/test_every_page.py",
    "browser/test_habits_live.py",
    "endtoend/test_bounds.py",
    "faults/test_network_faults.py",
    "endtoend/test_rehearsal.py",
    "faults/test_database_faults.py",
    "faults/test_embedded_faults.py",
    "browser/test_without_script.py",
    "browser/test_shell.py",
    "worker/test_cli_up.py",
    "worker/test_embedded.py",
    "faults/test_worker_faults.py",
    "browser/test_guided_tour.py",
    "worker/test_backups.py",
    "browser/test_habits_still.py",
)
# Files of one kind leave the machine idle together (what waits), or are in each other's way (Chromium's).
KINDS = {"browser": "browsers", "faults": "waiting", "endtoend": "waiting"}


def of(files: Iterable[Path]) -> list[Path]:
    """Return ``files`` with each kind of them spread evenly from the beginning to the end."""
    kinds: dict[str, list[Path]] = {"browsers": [], "waiting": [], "computing": []}
    for file in files:
        kinds[KINDS.get(file.parent.name, "computing")].append(file)
    placed = [
        (n / len(kind), file) for kind in kinds.values() for n, file in enumerate(sorted(kind, key=_rank))
    ]
    return [file for _, file in sorted(placed, key=lambda one: one[0])]


def _rank(file: Path) -> int:
    """Return the place of ``file`` among the longest; all others share the one after them."""
    name = f"{file.parent.name}/{file.name}"
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)
