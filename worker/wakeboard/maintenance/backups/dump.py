"""The file of a backup: written by pg_dump, read by pg_restore. Each happens whole or not at all.

It is written beside its place, checked, synced, then given its name.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# What is of the moment only, and what would let people in again who had gone: tables without their rows.
LEFT_OUT = ("sessions", "login_links", "login_failures", "loops", "run_output", "unbegun_attempts")
LOOK_SECONDS = 0.1
# PGOPTIONS, PGSSLMODE … of the caller would otherwise steer the programs.
PLAIN = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


class BackupError(Exception):
    """The backup cannot be made or read; ``str()`` says why and what to do."""


def dump(
    pg_dump: Path, pg_restore: Path, url: str, file: Path, *, force: bool, progress: Callable[[str], None]
) -> int:
    """Dump the database of ``url`` into ``file`` (custom format, mode 0600); return its bytes.

    Work goes on meanwhile; the backup is the database at the moment it began. ``progress`` gets a sentence
    now and then. Raises BackupError; then ``file`` is as it was.
    """
    if file.exists() and not force:
        raise BackupError(f"{file} exists: name another file, or overwrite it with --force.")
    with _beside(file) as (part, opened):
        command = [str(pg_dump), "--format=custom", "--no-sync", f"--dbname={url}"]
        command += [f"--exclude-table-data=wakeboard.{name}" for name in LEFT_OUT]
        complaint = _run(
            command, opened, lambda: progress(f"writing the backup: {part.stat().st_size / 1e6:.0f} MB")
        )
        if complaint:
            raise BackupError(f"The backup could not be made: {complaint}")
        _check(pg_restore, part)
        os.fsync(opened)
        size = os.fstat(opened).st_size
        _name(part, file, force)
    return size


def contents(pg_restore: Path, file: Path) -> list[str]:
    """Return the entries of a backup's table of contents; raises BackupError when it is none."""
    try:
        with file.open("rb"):
            pass
    except OSError as failed:
        raise BackupError(f"{file} cannot be read: {failed.strerror}.") from failed
    listed = subprocess.run([str(pg_restore), "--list", str(file)], capture_output=True, text=True, env=PLAIN)
    if listed.returncode != 0:
        raise BackupError(f"{file} is no backup that can be read: {_last_error(listed.stderr)}")
    return [line for line in listed.stdout.splitlines() if line and not line.startswith(";")]


def load(pg_restore: Path, url: str, file: Path, *, progress: Callable[[str], None]) -> None:
    """Load ``file`` into the empty database of ``url``, all of it or nothing.

    Everything belongs to the role of ``url`` afterwards; rights of other roles are not restored, because a
    backup holds no roles. Raises BackupError.
    """
    command = [str(pg_restore), "--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error"]
    command += [f"--dbname={url}", str(file)]
    complaint = _run(command, None, lambda: progress("reading the backup"))
    if complaint:
        raise BackupError(f"{file} could not be restored: {complaint}")


@contextmanager
def _beside(file: Path) -> Iterator[tuple[Path, int]]:
    """Give an empty file of mode 0600 beside ``file``, gone afterwards unless it was renamed."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as failed:
        raise BackupError(f"Cannot write into {file.parent}: {failed.strerror}. Name another.") from failed
    try:
        yield part, opened
    finally:
        os.close(opened)
        part.unlink(missing_ok=True)


def _run(command: list[str], output: int | None, progress: Callable[[], None]) -> str:
    """Run a program to its end, calling ``progress`` now and then; return its complaint, '' if it went well.

    ``output`` is an open file for what the program writes.
    """
    with subprocess.Popen(
        command, stdout=output, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=PLAIN
    ) as program:
        try:
            while program.poll() is None:
                progress()
                time.sleep(LOOK_SECONDS)
        except BaseException:
            program.kill()
            raise
        assert program.stderr is not None
        complaint = program.stderr.read()
    return _last_error(complaint) if program.returncode != 0 else ""


def _check(pg_restore: Path, part: Path) -> None:
    entries = contents(pg_restore, part)
    if not any("TABLE DATA wakeboard job_runs" in entry for entry in entries):
        raise BackupError("The backup holds no runs: is the schema there? Run: wakeboard db upgrade")


def _name(part: Path, file: Path, force: bool) -> None:
    """Give the finished file its name; without ``force`` it takes nobody else's."""
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
    """Return the line of a program's complaint that names the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else "it gave no reason")
