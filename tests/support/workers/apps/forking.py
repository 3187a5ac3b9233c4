"""Handlers that fork, and handlers that start programs, for the tests of what both inherit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from wakeboard import Context, job

FORK = multiprocessing.get_context("fork")
STATUS = ("SigIgn", "SigBlk")
# The C library ignores two of its own for whatever it starts.
NAMED = sum(1 << (number - 1) for number in signal.Signals)
# What this module's import has seen of a program that it started.
IMPORTED: dict[str, int] = {}


def signals(text: str) -> dict[str, int]:
    """The ignored and blocked signals in the text of a /proc/<pid>/status, as sets of bits."""
    found = dict(line.split(":") for line in text.splitlines() if line.partition(":")[0] in STATUS)
    return {name: int(value, 16) & NAMED for name, value in found.items()}


def of_a_program() -> dict[str, int]:
    """The signals that a program finds which is started here."""
    return signals(subprocess.run(["/bin/cat", "/proc/self/status"], capture_output=True, text=True).stdout)


IMPORTED |= of_a_program()


@job("terminate_at_once")
def terminate_at_once(ctx: Context) -> list[int | None]:
    """Start processes by multiprocessing and ask each to end, at once; how they ended."""
    ended: list[int | None] = []
    for _ in range(20):
        process = FORK.Process(target=time.sleep, args=(600,))
        process.start()
        process.terminate()
        process.join(5)
        ended.append(process.exitcode)
        process.kill()
    return ended


@job("pools")
def pools(ctx: Context) -> int:
    """Work in one pool of processes after another; how many have ended."""
    for _ in range(ctx.payload["pools"]):
        with FORK.Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
    return int(ctx.payload["pools"])


@job("interrupt")
def interrupt(ctx: Context) -> list[int | None]:
    """Send a program and a forked process SIGINT, another program SIGHUP; how they ended."""
    programs = [subprocess.Popen(["/bin/sleep", "600"]) for _ in range(2)]
    for program, number in zip(programs, (signal.SIGINT, signal.SIGHUP), strict=True):
        program.send_signal(number)
    return [program.wait(5) for program in programs]


@job("programs")
def programs(ctx: Context) -> dict[str, dict[str, int]]:
    """The signals of programs that are started while the module is imported, by a run, and by a fork."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(write, 1)
        os.execv("/bin/cat", ["cat", "/proc/self/status"])
    os.close(write)
    with os.fdopen(read) as pipe:
        forked = signals(pipe.read())
    by_hook = subprocess.run(
        ["/bin/cat", "/proc/self/status"], preexec_fn=int, capture_output=True, text=True
    ).stdout
    return {"import": IMPORTED, "run": of_a_program(), "fork": forked, "hook": signals(by_hook)}


def _exit(how: str) -> int:
    match how:
        case "three":
            sys.exit(3)
        case "words":
            sys.exit("said at the end")
        case "nothing":
            sys.exit()
        case "error":
            raise ValueError("of the forked process")
    return 0


@job("forks_that_end")
def forks_that_end(ctx: Context) -> Any:
    """Fork, and let the new process leave the handler as the payload says; the status of its end."""
    pid = os.fork()
    if pid == 0:
        return _exit(ctx.payload["how"])
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@job("fork_shows")
def fork_shows(ctx: Context) -> str:
    """What a forked process has of its parent's: signals, the handler's own one, sockets."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        handled = [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)]
        plain = handled == [signal.SIG_DFL, signal.SIG_DFL, signal.SIG_IGN]
        interrupted = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        os.write(write, f"{plain} {interrupted} {_sockets()}".encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    return os.read(read, 1000).decode()


def _sockets() -> int:
    count = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += "socket" in str(fd.readlink())
    return count


@job("own_term")
def own_term(ctx: Context) -> int:
    """Handle SIGTERM in a way of one's own, fork, and send it to the new process; the status of its end."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(42))
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
