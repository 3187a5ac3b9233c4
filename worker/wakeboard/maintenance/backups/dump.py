"""The file of a backup: written by pg_dump, read by pg_restore, each completely or not at all.

It is written under a temporary name in its folder, checked, synced, then renamed.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Tables without their rows: what is of the moment only, and what would sign people in again.
EXCLUDED_TABLES = ("sessions", "login_links", "login_failures", "loops", "run_output", "unbegun_attempts")
POLL_SECONDS = 0.1
# PGOPTIONS, PGSSLMODE … of the caller would otherwise steer the programs.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


class BackupError(Exception):
    """The backup cannot be made or read; ``str()`` says why and what to do."""


def dump(
    pg_dump: Path, pg_restore: Path, url: str, file: Path, *, force: bool, progress: Callable[[str], None]
) -> int:
    """Dump the database of ``url`` into ``file`` (custom format, mode 0600); return its bytes.

    Workers go on meanwhile; the backup is the database at the moment it began. ``progress`` gets a sentence
    now and then. Raises BackupError; ``file`` is then unchanged.
    """
    if file.exists() and not force:
        raise BackupError(f"{file} exists: name another file, or overwrite it with --force.")
    with _part_of(file) as (part, descriptor):
        command = [str(pg_dump), "--format=custom", "--no-sync", f"--dbname={url}"]
        command += [f"--exclude-table-data=wakeboard.{name}" for name in EXCLUDED_TABLES]
        error = _run(
            command, descriptor, lambda: progress(f"writing the backup: {part.stat().st_size / 1e6:.0f} MB")
        )
        if error:
            raise BackupError(f"The backup could not be made: {error}")
        if not any("TABLE DATA wakeboard job_runs" in entry for entry in list_entries(pg_restore, part)):
            raise BackupError("The backup holds no runs: is the schema there? Run: wakeboard db upgrade")
        os.fsync(descriptor)
        size = os.fstat(descriptor).st_size
        _rename(part, file, force)
    return size


def list_entries(pg_restore: Path, file: Path) -> list[str]:
    """Return the entries of a backup's table of contents; raises BackupError when ``file`` is no backup."""
    try:
        with file.open("rb"):
            pass
    except OSError as failed:
        raise BackupError(f"{file} cannot be read: {failed.strerror}.") from failed
    command = [str(pg_restore), "--list", str(file)]
    listing = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    if listing.returncode != 0:
        raise BackupError(f"{file} is no backup that can be read: {_last_error(listing.stderr)}")
    return [line for line in listing.stdout.splitlines() if line and not line.startswith(";")]


def load(pg_restore: Path, url: str, file: Path, *, progress: Callable[[str], None]) -> None:
    """Read ``file`` into the empty database of ``url``, completely or not at all.

    Everything belongs to the role of ``url`` afterwards; rights of other roles are not restored, because a
    backup holds no roles. Raises BackupError.
    """
    command = [str(pg_restore), "--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error"]
    command += [f"--dbname={url}", str(file)]
    error = _run(command, None, lambda: progress("reading the backup"))
    if error:
        raise BackupError(f"{file} could not be restored: {error}")


@contextmanager
def _part_of(file: Path) -> Iterator[tuple[Path, int]]:
    """Make an empty file of mode 0600 beside ``file``; at the end remove it unless it was renamed."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as failed:
        raise BackupError(f"Cannot write into {file.parent}: {failed.strerror}. Name another.") from failed
    try:
        yield part, descriptor
    finally:
        os.close(descriptor)
        part.unlink(missing_ok=True)


def _run(command: list[str], output: int | None, progress: Callable[[], None]) -> str:
    """Run a program and call ``progress`` meanwhile; return its error, '' when it succeeded.

    ``output`` is the descriptor of a file for what the program writes.
    """
    with subprocess.Popen(
        command, stdout=output, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=ENVIRONMENT
    ) as program:
        try:
            while program.poll() is None:
                progress()
                time.sleep(POLL_SECONDS)
        except BaseException:
            program.kill()
            raise
        assert program.stderr is not None
        errors = program.stderr.read()
    return _last_error(errors) if program.returncode != 0 else ""


def _rename(part: Path, file: Path, force: bool) -> None:
    """Rename the finished ``part`` to ``file`` and sync the folder; only ``force`` replaces a file."""
    if force:
        part.replace(file)
    else:
        try:
            os.link(part, file)
        except FileExistsError:
            raise BackupError(f"{file} exists by now: name another file, or use --force.") from None
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _last_error(text: str) -> str:
    """Return the line of a program's standard error that names the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else "it gave no reason")
