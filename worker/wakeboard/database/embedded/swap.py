"""Puts one cluster in the place of another: the old one is kept aside, and comes back when the new one fails.

Moves folders only while no server runs there and no other process can start one.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from wakeboard.database.embedded import admin, locks
from wakeboard.database.embedded.cluster_owner import owner_uid
from wakeboard.database.embedded.errors import EmbeddedError
from wakeboard.database.embedded.paths import ClusterPaths
from wakeboard.database.embedded.server import (
    STOP_SECONDS,
    WaitNotice,
    existing_paths,
    find_paths,
    prepare_paths,
    reason_in_use,
    stop_postmaster,
)

# Files that an operator may have edited: they belong to the server, not to the data.
OWN_FILES = ("postgresql.conf", "postgresql.auto.conf")


def list_sessions(data_dir: Path) -> list[tuple[str, int]]:
    """Return (application, server process) of each session on the server of ``data_dir``; [] when it is down.

    Raises EmbeddedError when the server does not answer.
    """
    paths = existing_paths(data_dir)
    if paths is None or not admin.probe(paths).is_ready:
        return []
    try:
        return admin.list_sessions(paths)
    except psycopg.Error as failed:
        raise EmbeddedError(f"The database in {data_dir} cannot be asked who uses it: {failed}") from failed


def swap_in(data_dir: Path, fresh_dir: Path) -> Path | None:
    """Put the stopped cluster of ``fresh_dir`` in the place of that of ``data_dir``.

    Stops the server of ``data_dir``. Returns where the old cluster is kept, None when there was none. Raises
    EmbeddedError while anybody uses either; then nothing was moved.
    """
    paths, fresh = prepare_paths(data_dir), find_paths(fresh_dir)
    with locks.start_lock(paths, time.monotonic() + STOP_SECONDS, WaitNotice(None)):
        _require_stopped(paths)
        if locks.is_server_alive(fresh):
            raise EmbeddedError(f"The database in {fresh_dir} still runs: stop it first.")
        aside = None
        if paths.cluster.exists():
            _keep_own_files(paths, fresh)
            aside = _aside(paths, "before")
            paths.cluster.rename(aside)
        fresh.cluster.rename(paths.cluster)
        _sync(paths.home)
    return aside


def swap_back(data_dir: Path, aside: Path | None) -> Path:
    """Bring the cluster ``aside`` of ``swap_in`` back; return where the other one is kept now."""
    paths = find_paths(data_dir)
    with locks.start_lock(paths, time.monotonic() + STOP_SECONDS, WaitNotice(None)):
        _require_stopped(paths)
        failed = _aside(paths, "failed")
        paths.cluster.rename(failed)
        if aside is not None:
            aside.rename(paths.cluster)
        _sync(paths.home)
    return failed


def _require_stopped(paths: ClusterPaths) -> None:
    """Stop the server unless somebody uses it, for the holder of start.lock."""
    locks.unmark_use(paths)
    pid = admin.find_postmaster(paths)
    if pid is not None:
        if reason := reason_in_use(paths):
            raise EmbeddedError(f"The database in {paths.data_dir} is in use: {reason}. End that first.")
        stop_postmaster(paths, pid, time.monotonic() + STOP_SECONDS)
    elif locks.is_server_alive(paths):
        raise EmbeddedError(
            f"The database in {paths.data_dir} runs where we cannot see it (another container?): "
            "stop it there."
        )


def _aside(paths: ClusterPaths, word: str) -> Path:
    return paths.home / f"data.{word}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"


def _keep_own_files(paths: ClusterPaths, fresh: ClusterPaths) -> None:
    for name in OWN_FILES:
        old, new = paths.cluster / name, fresh.cluster / name
        with suppress(FileNotFoundError):
            shutil.copyfile(old, new)
            if (uid := owner_uid(fresh.cluster)) is not None:
                os.chown(new, uid, -1)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
