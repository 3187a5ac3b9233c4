"""The job type ``command``: runs one program with its arguments, as cron would.

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
from typing import IO

from wakeboard.core.builtin_payloads import (
    COMMAND_FIELDS,
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
from wakeboard.handlers.builtin.instructions import read_instructions
from wakeboard.handlers.captured_output import captured_bytes, last_output_line
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import JobType, add_builtin, job

_POLL_SECONDS = 0.5
# How much of the output in a pipe is copied at once, and how often at most at the end of the program.
_CHUNK_BYTES, _LAST_CHUNKS = 65_536, 64
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
    payload = read_instructions(context, COMMAND_FIELDS)
    ok_codes, before = ok_codes_of(payload), captured_bytes() or 0
    with _standard_input(payload) as stdin, _start(context, payload, stdin, account) as process:
        status = _wait(context, process)
    if status not in ok_codes:
        raise _failure(status, last_output_line(_LINE_CHARACTERS, before))
    return {"exit": status}


def register_users() -> None:
    """Register a job type for each OS user as whom this process may run commands."""
    for name in run_as.command_types():
        add_builtin(JobType(name, command))


def environment(
    context: Context, variables: dict[str, str], account: pwd.struct_passwd | None = None
) -> dict[str, str]:
    """Return the environment of the program: cron's few variables, ``variables``, and those of the run.

    ``account``: the user of the program, None for the user of this process. Nothing of the worker's own
    environment is in it, so neither is the password of its database.
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
    return cron | variables | run


@contextmanager
def _standard_input(payload: Instructions) -> Iterator[IO[bytes] | int]:
    """Yield the text of ``stdin`` as a file: a program that never reads a pipe would block us."""
    text = text_of(payload, "stdin")
    if text is None:
        yield subprocess.DEVNULL
        return
    with tempfile.TemporaryFile() as file:
        file.write(text.encode("utf-8", "replace"))
        file.seek(0)
        yield file


@contextmanager
def _start(
    context: Context, payload: Instructions, stdin: IO[bytes] | int, account: pwd.struct_passwd | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program in a process group of its own; an early exit of the block stops that group.

    The program dies with this process, also when every process of the worker is killed at the same instant
    and none is left to end it.
    """
    argv, variables = argv_of(payload), environment(context, texts_of(payload, "env"), account)
    folder = _folder(payload, variables["HOME"])
    # Other programs of that user can open the files of this one and keep them. So it gets a pipe, not the
    # file that later runs of other users write to.
    out, err = (None, None) if account is None else (subprocess.PIPE, subprocess.STDOUT)
    sys.stdout.flush()
    try:
        process = subprocess.Popen(
            argv, stdin=stdin, stdout=out, stderr=err, env=variables, process_group=0,
            preexec_fn=partial(_prepare, os.getpid(), folder), **run_as.popen_options(account),
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


def _prepare(parent: int, folder: str) -> None:
    """Prepare the new process, which has the run's user by now.

    Not earlier: a change of user resets the signal at the parent's death, and root could enter a folder that
    the user may not.
    """
    die_with_parent(parent)
    os.chdir(folder)


def _folder(payload: Instructions, home: str) -> str:
    folder = text_of(payload, "cwd")
    if folder is not None and not Path(folder).is_dir():
        raise CommandFailed("command_not_started", f"There is no folder '{folder}' on this host to run in.")
    # HOME may be closed to this user, as in a container that runs as a user whom its image does not know.
    return folder or (home if os.access(f"{home}/.", os.X_OK) else "/")


def _wait(context: Context, process: subprocess.Popen[bytes]) -> int:
    """Wait for the program; raises Cancelled or DeadlineExceeded soon after the run should stop."""
    while not _has_ended(process):
        context.check()
    return process.wait()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Wait a moment for the program's end, and copy the output in its pipe, if it has one, to ours."""
    pipe = process.stdout
    readable = [] if pipe is None or pipe.closed else [pipe.fileno()]
    ended = [os.pidfd_open(process.pid)] if hasattr(os, "pidfd_open") else []
    try:
        ready = select.select([*ended, *readable], [], [], _POLL_SECONDS)[0]
    finally:
        for fd in ended:
            os.close(fd)
    has_ended = ended[0] in ready if ended else process.poll() is not None
    if pipe is not None and readable:
        # Background processes of the program may hold the pipe open after its end.
        _copy(pipe, _LAST_CHUNKS if has_ended else 1)
    return has_ended


def _copy(pipe: IO[bytes], most_chunks: int) -> None:
    """Copy what has arrived in ``pipe`` to our output; close it at its end."""
    for _ in range(most_chunks):
        if not select.select([pipe], [], [], 0)[0]:
            return
        if not (chunk := os.read(pipe.fileno(), _CHUNK_BYTES)):
            pipe.close()
            return
        os.write(1, chunk)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process group and wait while the supervisor lets us; a second interruption kills it."""
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
