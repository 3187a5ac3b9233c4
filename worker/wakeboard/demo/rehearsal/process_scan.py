"""Which processes belong to a rehearsal: found by what the system says of them, not by what we remember."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from wakeboard.demo.rehearsal.waiting import comes_true

# Each of our workers, and so each of its children, was started with this variable.
MARK = "WAKEBOARD_DATA_DIR"


def workers_of(folder: Path) -> list[psutil.Process]:
    """Return the living processes that were started as workers of the rehearsal in ``folder``."""
    return [each for each in _others() if _environment(each).get(MARK) == str(folder)]


def servers_of(folder: Path) -> list[psutil.Process]:
    """Return the living database servers whose data is inside ``folder``."""
    return [each for each in _others() if any(word.startswith(f"{folder}/") for word in _words(each))]


def end(processes: list[psutil.Process], by: signal.Signals, seconds: float = 10) -> bool:
    """Send ``by`` to ``processes`` and tell whether they are gone within ``seconds``."""
    for each in processes:
        with suppress(psutil.Error):
            each.send_signal(by)
    return comes_true(lambda: not any(_lives(each) for each in processes), seconds)


def _others() -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if each.pid != os.getpid() and _lives(each)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _words(process: psutil.Process) -> list[str]:
    try:
        words = process.cmdline()
    except (psutil.Error, OSError):
        return []
    return words if words and Path(words[0]).name == "postgres" else []
