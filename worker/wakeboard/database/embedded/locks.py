"""Locks that the kernel keeps and gives back when their holder dies; no lock file's content means anything.

Three of them, in the cluster's folder:

- ``start.lock``: held while somebody starts or stops the server.
- ``server.lock``: held by the server itself. The starter takes it and the server inherits the open file, so
  it is free exactly when the postmaster and every child of it are gone, in whatever container they ran.
  A process id in ``postmaster.pid`` proves nothing: after a crash the number may be anybody's.
- ``use.lock``: shared by every process that called start() and has not called stop(), so that nobody stops
  the server between another's start() and its first connection.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from wakeboard.database.embedded.errors import EmbeddedError
from wakeboard.database.embedded.paths import ClusterPaths

WAIT_SECONDS = 0.05

_use_locks: dict[str, int] = {}


@contextmanager
def start_lock(paths: ClusterPaths, deadline: float, notice: Callable[[str], None]) -> Iterator[None]:
    """Hold ``start.lock``; waits until ``deadline`` (monotonic seconds), then raises EmbeddedError."""
    opened = _open(paths, "start.lock")
    try:
        while not _try_lock(opened):
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"Another process has been starting or stopping the database in {paths.home} for too "
                    "long: look for it with 'ps', end it, and try again."
                )
            notice("waiting for another process that starts or stops the database")
            time.sleep(WAIT_SECONDS)
        yield
    finally:
        os.close(opened)


@contextmanager
def server_lock(paths: ClusterPaths) -> Iterator[int | None]:
    """Take ``server.lock`` and give its open file, for a new server to inherit; None while one lives."""
    opened = _open(paths, "server.lock")
    try:
        yield opened if _try_lock(opened) else None
    finally:
        os.close(opened)


def is_server_alive(paths: ClusterPaths) -> bool:
    """Return whether any process of a server that we started is alive, ready or not."""
    with server_lock(paths) as lock:
        return lock is None


@contextmanager
def mark_use(paths: ClusterPaths) -> Iterator[None]:
    """Hold ``use.lock`` until unmark_use() or the end of this process; release it when the block fails.

    Only for the holder of start.lock: stop() alone takes ``use.lock`` for itself, and holds start.lock too.
    """
    key = str(paths.home)
    if key in _use_locks:
        yield
        return
    _use_locks[key] = _open(paths, "use.lock")
    try:
        fcntl.flock(_use_locks[key], fcntl.LOCK_SH)
        yield
    except BaseException:
        unmark_use(paths)
        raise


def unmark_use(paths: ClusterPaths) -> None:
    """Release what mark_use() holds."""
    opened = _use_locks.pop(str(paths.home), None)
    if opened is not None:
        os.close(opened)


def is_used_by_others(paths: ClusterPaths) -> bool:
    """Return whether another process has called start() and lives."""
    opened = _open(paths, "use.lock")
    try:
        return not _try_lock(opened)
    finally:
        os.close(opened)


def _try_lock(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(paths: ClusterPaths, name: str) -> int:
    path = paths.home / name
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(FileExistsError):
        created = os.open(path, flags | os.O_EXCL, 0o600)
        if paths.owner.is_foreign:
            os.fchown(created, paths.owner.uid, paths.owner.gid)
        return created
    return os.open(path, flags, 0o600)
