"""The module with the handlers: can it be imported, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from worker.cli.diagnosis.finding import Finding
from worker.settings import Settings

APP_SECONDS = 30


def app(settings: Settings) -> Iterator[Finding]:
    """Import the app in a process of its own: importing a user's module may do anything."""
    if settings.app is None:
        yield Finding(
            "app", "warning", "No module with handlers is set.", "Set WAKEBOARD_APP or use --app MODULE."
        )
        return
    code = (
        "import sys; from worker import registry as r; added = r.load_app(sys.argv[1]); "
        "print(added, '' if added else r.without_handlers(sys.argv[1]))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, settings.app],
            capture_output=True, text=True, timeout=APP_SECONDS, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        yield Finding(
            "app",
            "fail",
            f"Importing {settings.app} takes over {APP_SECONDS} s.",
            "Move slow work out of the import.",
        )
        return
    if done.returncode == 0:
        number, _, complaint = (done.stdout.strip().splitlines() or ["0 "])[-1].partition(" ")
        if complaint:
            mend = f"If it is a file of yours, start in its folder (now {Path.cwd()})."
            yield Finding("app", "fail", complaint, mend)
        else:
            kinds = "1 job type" if number == "1" else f"{number} job types"
            yield Finding("app", "ok", f"{settings.app} is importable: {kinds} of its own.")
        return
    last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    mend = f"Mend the module, or start in its folder (now {Path.cwd()})."
    yield Finding("app", "fail", f"{settings.app} cannot be imported: {last}.", mend)
