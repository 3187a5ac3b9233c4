"""One cluster in the place of another: the old one is kept aside, and comes back when the new one fails.

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

from wakeboard.database.embedded import contact, locks
from wakeboard.database.embedded.errors import EmbeddedError
from wakeboard.database.embedded.identity import holder
from wakeboard.database.embedded.places import ClusterPaths
from wakeboard.database.embedded.server import (
    STOP_SECONDS,
    WaitNotice,
    end,
    existing,
    find,
    prepare,
    why_used,
)

# What an operator may have written by hand: it is the server's, not the data's.
OWN_FILES = ("postgresql.conf", "postgresql.auto.conf")


def sessions(data_dir: Path) -> list[tuple[str, int]]:
    """Return (application, server process) of each session on the server of ``data_dir``; [] when it is down.

    Raises EmbeddedError when a process that may use the server cannot be asked for.
    """
    places = existing(data_dir)
    if places is None or not contact.ask(places).ready:
        return []
    try:
        return contact.sessions(places)
    except psycopg.Error as failed:
        raise EmbeddedError(f"The database in {data_dir} cannot be asked who uses it: {failed}") from failed


def exchange(data_dir: Path, fresh_dir: Path) -> Path | None:
    """Put the stopped cluster of ``fresh_dir`` in the place of that of ``data_dir``.

    Stops the server of ``data_dir``. Returns where the old cluster is kept, None when there was none. Raises
    EmbeddedError while anybody uses either; then nothing was moved.
    """
    places, fresh = prepare(data_dir), find(fresh_dir)
    with locks.starting(places, time.monotonic() + STOP_SECONDS, WaitNotice(None)):
        _require_stopped(places)
        if locks.server_lives(fresh):
            raise EmbeddedError(f"The database in {fresh_dir} still runs: stop it first.")
        aside = None
        if places.cluster.exists():
            _keep_own_files(places, fresh)
            aside = _aside(places, "before")
            places.cluster.rename(aside)
        fresh.cluster.rename(places.cluster)
        _sync(places.home)
    return aside


def put_back(data_dir: Path, aside: Path | None) -> Path:
    """Bring the cluster ``aside`` back, as ``exchange`` kept it; return where the other one is kept now."""
    places = find(data_dir)
    with locks.starting(places, time.monotonic() + STOP_SECONDS, WaitNotice(None)):
        _require_stopped(places)
        failed = _aside(places, "failed")
        places.cluster.rename(failed)
        if aside is not None:
            aside.rename(places.cluster)
        _sync(places.home)
    return failed


def _require_stopped(places: ClusterPaths) -> None:
    """Stop the server unless somebody uses it, for the holder of start.lock."""
    locks.unmark_use(places)
    pid = contact.postmaster(places)
    if pid is not None:
        if reason := why_used(places):
            raise EmbeddedError(f"The database in {places.data_dir} is in use: {reason}. End that first.")
        end(places, pid, time.monotonic() + STOP_SECONDS)
    elif locks.server_lives(places):
        raise EmbeddedError(
            f"The database in {places.data_dir} runs where we cannot see it (another container?): "
            "stop it there."
        )


def _aside(places: ClusterPaths, word: str) -> Path:
    return places.home / f"data.{word}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"


def _keep_own_files(places: ClusterPaths, fresh: ClusterPaths) -> None:
    for name in OWN_FILES:
        old, new = places.cluster / name, fresh.cluster / name
        with suppress(FileNotFoundError):
            shutil.copyfile(old, new)
            if (uid := holder(fresh.cluster)) is not None:
                os.chown(new, uid, -1)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
