"""Handlers that behave as badly as handlers do, for the tests of the children."""

from __future__ import annotations

import asyncio
import ctypes
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from wakeboard import Context, Permanent, Retryable, job
from wakeboard.core.outcome import Cancelled
from wakeboard.runtime.processes import child_reset


@job("nothing")
def nothing(ctx: Context) -> None:
    """End at once."""


@job("wait_for")
def wait_for(ctx: Context) -> None:
    """Go on until the payload's file is there."""
    while not Path(ctx.payload["file"]).exists():
        time.sleep(0.005)


@job("echo")
def echo(ctx: Context) -> Any:
    """Print and return the payload."""
    print(ctx.payload)
    return ctx.payload


@job("echo_async")
async def echo_async(ctx: Context) -> Any:
    """Return the payload after a turn of the event loop."""
    await asyncio.sleep(0)
    return ctx.payload


@job("show")
def show(ctx: Context) -> dict[str, Any]:
    """What a process and its context look like from inside a run."""
    mask = os.umask(0)
    os.umask(mask)
    return {
        "pid": os.getpid(),
        "folder": str(Path.cwd()),
        "extra": os.environ.get("LEFT_BEHIND"),
        "umask": mask,
        "term": signal.getsignal(signal.SIGTERM) is signal.SIG_IGN,
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "timer": signal.getitimer(signal.ITIMER_REAL)[0],
        "pipe": signal.getsignal(signal.SIGPIPE),
        "usr1": signal.getsignal(signal.SIGUSR1),
        "largest_file": resource.getrlimit(resource.RLIMIT_FSIZE)[0],
        "attempt": ctx.attempt,
        "key": ctx.key,
        "scheduled_for": str(ctx.scheduled_for),
        "session": os.getsid(0) == os.getpid(),
        "hour_left": 0 < ctx.seconds_left <= 3600,
    }


@job("litter")
def litter(ctx: Context) -> int:
    """Change everything a run can leave behind."""
    os.chdir("/")
    os.environ["LEFT_BEHIND"] = "yes"
    os.umask(0o077)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.alarm(1)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
    return os.getpid()


@job("litter_slowly")
def litter_slowly(ctx: Context) -> None:
    """Change what is looked at only after a run that took a while."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    time.sleep(0.005)


@job("wander")
def wander(ctx: Context) -> None:
    """Go elsewhere, in no time."""
    os.chdir("/")


@job("leave_process")
def leave_process(ctx: Context) -> int:
    """Leave a process running, in as little time as that takes; note and return its id."""
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
    note(ctx.payload, pid)
    return pid


@job("look_away")
def look_away(ctx: Context) -> None:
    """From now on every run of this process is taken for a short one, or for one too short to start
    processes."""
    child_reset._SHORT_NS = child_reset._LONG_NS = 10**12
    if ctx.payload["short"] == "too short":
        child_reset._SPAWN_NS = 10**12


@job("empty_and_end")
def empty_and_end(ctx: Context) -> None:
    """Empty the output's file and write nothing."""
    os.close(os.open("/dev/stdout", os.O_WRONLY | os.O_TRUNC))


@job("wait_if_asked")
def wait_if_asked(ctx: Context) -> None:
    """End at once, or wait."""
    while ctx.payload:
        time.sleep(0.01)


@job("replace_output")
def replace_output(ctx: Context) -> None:
    """Put another file in the place of standard output, in no time."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


@job("empty_output")
def empty_output(ctx: Context) -> None:
    """Write as a shell does after `> /dev/stderr`: into an emptied file."""
    print("what was before")
    Path("/dev/stderr").write_text("said at last\n")


@job("join_threads")
def join_threads(ctx: Context) -> int:
    """Work in eight threads, wait for all of them, and return the process id."""
    threads = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return os.getpid()


@job("leave_thread")
def leave_thread(ctx: Context) -> int:
    """Leave a thread running."""
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return os.getpid()


@job("fail")
def fail(ctx: Context) -> NoReturn:
    """Raise what the payload names."""
    match ctx.payload["how"]:
        case "permanent":
            raise Permanent("card_declined", "The bank said no.")
        case "retryable":
            raise Retryable("busy", "Later.", after=90)
        case "system_exit":
            sys.exit(ctx.payload.get("status"))
        case "keyboard":
            raise KeyboardInterrupt
        case "generator":
            raise GeneratorExit
    raise ValueError("nothing named")


@job("violent")
def violent(ctx: Context) -> Any:
    """Leave in the way the payload names."""
    match ctx.payload["how"]:
        case "exit":
            os._exit(0)
        case "abort":
            os.abort()
        case "segfault":
            ctypes.string_at(0)
        case "close":
            os.closerange(0, 21)
        case "close_everything":
            os.closerange(0, 1024)
        case "fork_and_return":
            os.fork()
            return os.getpid()
    return None


@job("wait")
def wait(ctx: Context) -> None:
    """Print, note the process id in the file that the payload names, and wait in small steps."""
    print("waiting", flush=True)
    note(ctx.payload, os.getpid())
    while True:
        time.sleep(0.01)


@job("wait_async")
async def wait_async(ctx: Context) -> None:
    """Wait on the event loop."""
    await asyncio.sleep(600)


@job("polite")
def polite(ctx: Context) -> None:
    """Stop when asked."""
    note(ctx.payload, os.getpid())
    while True:
        ctx.check()
        time.sleep(0.002)


@job("deaf")
def deaf(ctx: Context) -> None:
    """Spin, with SIGTERM ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(ctx.payload, os.getpid())
    while True:
        pass


@job("stuck_in_c")
def stuck_in_c(ctx: Context) -> None:
    """Sit in a C call that starts over after a signal, and swallow what comes just before it."""
    libc = ctypes.PyDLL(None)
    while True:
        with suppress(Cancelled):
            note(ctx.payload, os.getpid())
            libc.sleep(600)


@job("stubborn")
def stubborn(ctx: Context) -> str:
    """Swallow the request to stop and finish; leave a file when it can be asked."""
    try:
        Path(ctx.payload["file"]).touch()
        while True:
            time.sleep(0.01)
    except Cancelled:
        return "finished anyway"


@job("escape")
def escape(ctx: Context) -> None:
    """Start processes that leave the family by every means, then end or wait as the payload says."""
    folder = ctx.payload["folder"]
    script = f"echo $$ > {folder}/$1; exec sleep 600"
    for name in ("plain", "session", "cleared"):
        prefix = {"plain": [], "session": ["setsid"], "cleared": ["env", "-i", "setsid"]}[name]
        subprocess.Popen([*prefix, "/bin/sh", "-c", script, "sh", name])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(folder, "double").write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    while any(not Path(folder, name).exists() or not Path(folder, name).read_text() for name in ESCAPED):
        time.sleep(0.005)
    if ctx.payload.get("wait"):
        note({"file": f"{folder}/child"}, os.getpid())
        while True:
            time.sleep(1)


ESCAPED = ("plain", "session", "cleared", "double")


@job("chatter")
def chatter(ctx: Context) -> None:
    """Write without end."""
    while True:
        os.write(1, b"all work and no play\n" * 1000)


@job("say")
def say(ctx: Context) -> None:
    """Write what the payload holds in three ways."""
    print(ctx.payload["text"])
    ctx.log.info("logged\nin one line")
    os.write(2, b"\xff\x00\x1b[31mraw\n")


@job("hungry", memory_mb=64)
def hungry(ctx: Context) -> int:
    """Ask for more memory in one piece than any run of the type could be allowed."""
    return len(bytearray(1024 * 1024 * 1024))


class ArrayMemoryError(MemoryError):
    """What libraries raise that have more to say about it."""


@job("hungry_array", memory_mb=64)
def hungry_array(ctx: Context) -> int:
    """Ask for too much through a library with an error of its own."""
    try:
        return hungry(ctx)
    except MemoryError:
        raise ArrayMemoryError("Unable to allocate 1.00 GiB for an array") from None


@job("maps_much", memory_mb=64)
def maps_much(ctx: Context) -> int:
    """Map a large file and reserve a wide space, as databases and other languages' runtimes do."""
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * 2**30)
        mapped = mmap.mmap(file.fileno(), 2 * 2**30, prot=mmap.PROT_READ)
        reserved = mmap.mmap(-1, 2 * 2**30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
        return len(mapped) + len(reserved)


@job("keep")
def keep(ctx: Context) -> None:
    """Keep memory that the next run finds taken."""
    MAPPED.append(taken(ctx.payload["megabytes"]))


@job("family", memory_mb=500)
def family(ctx: Context) -> None:
    """Hold memory, and as much in a forked process."""
    MAPPED.append(taken(ctx.payload["megabytes"]))
    if os.fork() == 0:
        MAPPED.append(taken(ctx.payload["megabytes"]))
        time.sleep(600)
    while True:
        time.sleep(0.01)


MAPPED: list[mmap.mmap] = []


def taken(megabytes: int) -> mmap.mmap:
    """Private memory that is really in use, to the byte."""
    memory = mmap.mmap(-1, megabytes * 2**20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, len(memory), 4096):
        memory[page] = 1
    return memory


@job("nap")
def nap(ctx: Context) -> None:
    """Take about a millisecond."""
    time.sleep(0.001)


@job("last")
def last(ctx: Context) -> None:
    """Take so many seconds as the payload says."""
    time.sleep(ctx.payload)


@job("count")
def count(ctx: Context) -> None:
    """Report progress, beyond all bounds first."""
    ctx.progress(-5, 10**30)
    ctx.progress(3, 7)
    while True:
        ctx.check()
        time.sleep(0.002)


@job("committed")
def committed(ctx: Context) -> NoReturn:
    """Fail after the run was finished by its own transaction."""
    ctx.committed = True
    raise ValueError("after the commit")


@job("grow")
def grow(ctx: Context) -> int:
    """Keep memory for good."""
    HELD.append(bytearray(40 * 1024 * 1024))
    time.sleep(0.02)
    return os.getpid()


HELD: list[bytearray] = []


def note(payload: Any, number: int) -> None:
    """Write `number` whole into the file that the payload names."""
    if payload and "file" in payload:
        part = Path(payload["file"] + ".part")
        part.write_text(json.dumps(number))
        part.rename(payload["file"])
