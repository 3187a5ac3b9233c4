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
from wakeboard.database.embedded.places import ClusterPaths

WAIT_SECONDS = 0.05

_marks: dict[str, int] = {}


@contextmanager
def starting(places: ClusterPaths, deadline: float, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold ``start.lock``; waits until ``deadline`` (monotonic seconds), then raises EmbeddedError."""
    held = _open(places, "start.lock")
    try:
        while not _lock(held, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"Another process has been starting or stopping the database in {places.home} for too "
                    "long: look for it with 'ps', end it, and try again."
                )
            tell("waiting for another process that starts or stops the database")
            time.sleep(WAIT_SECONDS)
        yield
    finally:
        os.close(held)


@contextmanager
def server_lock(places: ClusterPaths) -> Iterator[int | None]:
    """Take ``server.lock`` and give its open file, for a new server to inherit; None while one lives."""
    opened = _open(places, "server.lock")
    try:
        yield opened if _lock(opened, fcntl.LOCK_EX) else None
    finally:
        os.close(opened)


def server_lives(places: ClusterPaths) -> bool:
    """Tell whether any process of a server that we started is alive, ready or not."""
    with server_lock(places) as taken:
        return taken is None


@contextmanager
def mark_use(places: ClusterPaths) -> Iterator[None]:
    """Note, until unmark_use() or the end of this process, that it uses the server; not when the block fails.

    Only for the holder of start.lock: stop() alone takes ``use.lock`` for itself, and holds start.lock too.
    """
    key = str(places.home)
    if key in _marks:
        yield
        return
    _marks[key] = _open(places, "use.lock")
    try:
        fcntl.flock(_marks[key], fcntl.LOCK_SH)
        yield
    except BaseException:
        unmark_use(places)
        raise


def unmark_use(places: ClusterPaths) -> None:
    """Take back the note of mark_use()."""
    opened = _marks.pop(str(places.home), None)
    if opened is not None:
        os.close(opened)


def used_by_others(places: ClusterPaths) -> bool:
    """Tell whether another process has called start() and lives."""
    opened = _open(places, "use.lock")
    try:
        return not _lock(opened, fcntl.LOCK_EX)
    finally:
        os.close(opened)


def _lock(opened: int, kind: int) -> bool:
    try:
        fcntl.flock(opened, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(places: ClusterPaths, name: str) -> int:
    path = places.home / name
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(FileExistsError):
        created = os.open(path, flags | os.O_EXCL, 0o600)
        if places.owner.foreign:
            os.fchown(created, places.owner.uid, places.owner.gid)
        return created
    return os.open(path, flags, 0o600)
