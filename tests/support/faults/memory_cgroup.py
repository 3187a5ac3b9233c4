"""A group of processes that the kernel allows only so much memory, where this machine lets us make one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# Where the hierarchy of memory is, and the file that holds the limit: version 1, then version 2.
PLACES = ((ROOT / "memory", "memory.limit_in_bytes"), (ROOT, "memory.max"))


@contextmanager
def memory_group(megabytes: int) -> Iterator[Path | None]:
    """Give the file into which a process writes its number to join; None where no group can be made."""
    group = _make(megabytes)
    try:
        yield group / "cgroup.procs" if group else None
    finally:
        if group:
            with suppress(OSError):
                group.rmdir()


def _make(megabytes: int) -> Path | None:
    for parent, limit in PLACES:
        group = parent / f"wakeboard-test-{secrets.token_hex(4)}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(megabytes * 2**20))
            return group
        except OSError:
            group.rmdir()
    return None
