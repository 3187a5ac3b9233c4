"""A handler that tells what it finds around it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click

from wakeboard import Context, job


@job("look_around")
def look_around(ctx: Context) -> dict[str, Any]:
    """Return whatever a handler could find out about how its process came to be."""
    return {
        "path": sys.path,
        "program": sys.argv[0],
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "folder": str(Path.cwd()),
        "names": sorted(os.environ),
        "database": os.environ["WAKEBOARD_DATABASE_URL"],
        "handled": {
            number.name: str(signal.getsignal(number)).partition(" at ")[0] for number in signal.Signals
        },
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "stdin": str(Path("/proc/self/fd/0").readlink()),
        "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
        "of_fork_server": os.getsid(os.getppid()) == os.getppid(),
        "threads": threading.active_count(),
        "command": str(click.get_current_context(silent=True)),
    }
