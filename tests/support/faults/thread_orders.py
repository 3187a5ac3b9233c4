"""Orders to the threads of living processes: who is there, and what ends one of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.support.faults.deployment import House
from tests.support.processes import SOURCES, wait_until

ORDER = signal.SIGRTMIN + 5


class Orders:
    """Orders to the processes that were started with ``environment``; see orders/sitecustomize.py."""

    def __init__(self, house: House) -> None:
        self._folder = house.folder / "orders"
        self._folder.mkdir()
        self.environment = {
            "THREAD_ORDERS": str(self._folder),
            "PYTHONPATH": f"{Path(__file__).with_name('orders')}{os.pathsep}{SOURCES}",
        }

    def names(self, pid: int) -> list[str]:
        """Return the names of the threads of the process."""
        return self._give(pid, {})

    def end(self, pid: int, *names: str) -> None:
        """Raise SystemExit in these threads, whatever they are at."""
        self._give(pid, {"end": names})

    def break_down(self, pid: int, *names: str) -> None:
        """Let these methods raise TypeError from now on: ``module:Class.method``."""
        self._give(pid, {"break": names})

    def _give(self, pid: int, order: dict[str, Sequence[str]]) -> list[str]:
        answer = self._folder / str(pid)
        answer.unlink(missing_ok=True)
        (self._folder / "order").write_text(json.dumps(order))
        os.kill(pid, ORDER)
        wait_until(answer.exists, 10, f"the process {pid} obeys")
        found: list[str] = json.loads(answer.read_text())
        return found
