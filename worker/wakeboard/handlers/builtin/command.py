"""The job type ``command``: one program with its arguments, as cron would run it, with a lease and a history.

``{"argv": ["/bin/sh", "-c", "…"], "env": {…}, "stdin": "…", "cwd": "…", "ok_codes": [0]}``. No shell unless
argv names one. ``command`` runs as the worker's own user, ``command:NAME`` as the OS user NAME alone.
"""

from __future__ import annotations

import os
import pwd
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from wakeboard.core.builtin_payloads import (
    COMMAND,
    COMMAND_TYPE,
    Instructions,
    argv_of,
    ok_codes_of,
    text_of,
    texts_of,
)
from wakeboard.core.process import os_user
from wakeboard.core.process.process_tree import die_with_parent
from wakeboard.handlers import run_as
from wakeboard.handlers.builtin.instructions import instructions
from wakeboard.handlers.captured_output import captured_bytes, last_line
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import JobType, add_builtin, job

_LOOK_SECONDS = 0.5
# How much is copied at once of what a program prints into a pipe, and how often more at its end.
_PIECE_BYTES, _LAST_PIECES = 65_536, 64
_LINE_CHARACTERS = 500


class CommandFailed(Exception):
    """The program ended badly or could not be started; ``error_code`` says how."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.error_code = code


@job(COMMAND_TYPE)
def command(context: Context) -> dict[str, int]:
    """Run the definition's program to its end and return ``{"exit": 0}``, or another of its ``ok_codes``.

    Raises CommandFailed with ``exit_<n>``, ``signal_<NAME>``, ``command_not_found`` or
    ``command_not_started``; Permanent where this process may not run commands of the type's user. When the
    run is stopped, the program's process group gets SIGTERM.
    """
    account = run_as.account(context.job_type)
    found = instructions(context, COMMAND)
    ok_codes, before = ok_codes_of(found), captured_bytes() or 0
    with _standard_input(found) as stdin, _started(context, found, stdin, account) as process:
        status = _wait(context, process)
    if status not in ok_codes:
        raise _failure(status, last_line(_LINE_CHARACTERS, before))
    return {"exit": status}


def register_users() -> None:
    """Register a job type for each OS user as whom this process may run commands."""
    for name in run_as.command_types():
        add_builtin(JobType(name, command))


def environment(
    context: Context, given: dict[str, str], account: pwd.struct_passwd | None = None
) -> dict[str, str]:
    """Return what the program sees: cron's few variables, the ``given`` ones, and which run it is.

    ``account``: whose program it is, None for the user of this process. Nothing of the worker's own
    environment goes along, so neither does its database's password.
    """
    user, home = os_user.password_entry() if account is None else (account.pw_name, account.pw_dir)
    cron = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "LOGNAME": user,
        "USER": user,
        "SHELL": "/bin/sh",
    }
    run = {
        "WAKEBOARD_RUN_ID": str(context.run_id),
        "WAKEBOARD_ATTEMPT": str(context.attempt),
        "WAKEBOARD_KEY": context.key or f"run-{context.run_id}",
        "WAKEBOARD_SCHEDULED_FOR": context.scheduled_for.isoformat() if context.scheduled_for else "",
    }
    return cron | given | run


@contextmanager
def _standard_input(found: Instructions) -> Iterator[IO[bytes] | int]:
    """Give the text of ``stdin`` as a file, so that a program that never reads it cannot block us."""
    given = text_of(found, "stdin")
    if given is None:
        yield subprocess.DEVNULL
        return
    with tempfile.TemporaryFile() as file:
        file.write(given.encode("utf-8", "replace"))
        file.seek(0)
        yield file


@contextmanager
def _started(
    context: Context, found: Instructions, stdin: Any, account: pwd.struct_passwd | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program in a process group of its own; leaving early stops that group and waits for it.

    The program dies with this process, also where nobody is left to sweep: when every process of the worker
    is killed at the same instant.
    """
    argv, variables = argv_of(found), environment(context, texts_of(found, "env"), account)
    folder = _folder(found, variables["HOME"])
    # Other programs of that user can open what this one has, and keep it: never the file that later runs of
    # other users write to.
    out, err = (None, None) if account is None else (subprocess.PIPE, subprocess.STDOUT)
    sys.stdout.flush()
    try:
        process = subprocess.Popen(
            argv, stdin=stdin, stdout=out, stderr=err, env=variables, process_group=0,
            preexec_fn=partial(_settle, os.getpid(), folder), **run_as.popen_options(account),
        )  # fmt: skip
    except subprocess.SubprocessError as refused:
        raise CommandFailed(
            "command_not_started",
            f"'{argv[0]}' cannot be started: '{variables['USER']}' may not enter the folder '{folder}'.",
        ) from refused
    except FileNotFoundError as missing:
        raise CommandFailed(
            "command_not_found", f"There is no program '{argv[0]}' on this host."
        ) from missing
    except (OSError, ValueError) as refused:
        raise CommandFailed("command_not_started", f"'{argv[0]}' cannot be started: {refused}.") from refused
    try:
        yield process
    except BaseException:
        _stop(process)
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()


def _settle(parent: int, folder: str) -> None:
    """Prepare the new process, which is of the run's user by now: a change of user forgets with whom to die,
    and root would enter a folder that the user may not."""
    die_with_parent(parent)
    os.chdir(folder)


def _folder(found: Instructions, home: str) -> str:
    given = text_of(found, "cwd")
    if given is not None and not Path(given).is_dir():
        raise CommandFailed("command_not_started", f"There is no folder '{given}' on this host to run in.")
    # Of another user it may be, as in a container that was started as one whom its image does not know.
    return given or (home if os.access(f"{home}/.", os.X_OK) else "/")


def _wait(context: Context, process: subprocess.Popen[bytes]) -> int:
    """Wait for the program; raises Cancelled or DeadlineExceeded soon after the run should stop."""
    while not _has_ended(process):
        context.check()
    return process.wait()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Wait a moment for the program's end, and copy what it prints into a pipe of its own to our output."""
    pipe = process.stdout
    printed = [] if pipe is None or pipe.closed else [pipe.fileno()]
    ended = [os.pidfd_open(process.pid)] if hasattr(os, "pidfd_open") else []
    try:
        ready = select.select([*ended, *printed], [], [], _LOOK_SECONDS)[0]
    finally:
        for fd in ended:
            os.close(fd)
    has_ended = ended[0] in ready if ended else process.poll() is not None
    if pipe is not None and printed:
        # At the end what the program has put into the background may hold the pipe open.
        _copy(pipe, _LAST_PIECES if has_ended else 1)
    return has_ended


def _copy(pipe: IO[bytes], most_pieces: int) -> None:
    """Copy what has arrived in ``pipe`` to our output; close it at its end."""
    for _ in range(most_pieces):
        if not select.select([pipe], [], [], 0)[0]:
            return
        if not (piece := os.read(pipe.fileno(), _PIECE_BYTES)):
            pipe.close()
            return
        os.write(1, piece)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the group to end and wait as long as the supervisor lets us; a second interruption kills it."""
    try:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        while process.poll() is None:
            _has_ended(process)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise


def _failure(status: int, line: str) -> CommandFailed:
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        code, what = f"signal_{name}", f"The command was ended by signal {-status} ({name})"
    else:
        code, what = f"exit_{status}", f"The command ended with exit status {status}"
    return CommandFailed(code, f"{what}: {line}" if line else f"{what} and printed nothing.")
