"""A wall clock that lies to the processes it is given to, and may jump while they run.

``clock.c`` is preloaded into them; libfaketime would do, but breaks Python's ``time.sleep``.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

# How long a handler that waits for its deadline may run.
TIMEOUT_SECONDS = 2
SOURCE = Path(__file__).with_name("clock.c")


class WallClock:
    """One clock. Start processes with ``environment``; all of them see its jumps at once."""

    def __init__(self, library: Path, file: Path, ahead_seconds: int = 0) -> None:
        self._file = file
        self._file.write_bytes(struct.pack("q", ahead_seconds))
        self.ahead_seconds = ahead_seconds
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "FAULTS_CLOCK": str(file)}

    def jump(self, ahead_seconds: int) -> None:
        """Be ahead of the truth by so many seconds from now on (behind it, when negative)."""
        self.ahead_seconds = ahead_seconds
        with self._file.open("r+b") as open_file:
            open_file.write(struct.pack("q", ahead_seconds))


def compiler() -> str | None:
    """Return the machine's C compiler, None when it has none."""
    return shutil.which("cc") or shutil.which("gcc")


def build(folder: Path) -> Path:
    """Compile the lie into ``folder``; return the library."""
    library = folder / "clock.so"
    found = compiler()
    assert found is not None
    subprocess.run([found, "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], check=True, timeout=60)
    return library
