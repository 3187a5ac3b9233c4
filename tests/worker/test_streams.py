"""What a process that serves prints: whole, in order, to its last line, and never waited for.

What happens to workers and dashboards whose log nobody reads are rows F82 to F84 of the fault table.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

from tests.support.processes import ROOT

BEGIN = (
    "import os, sys, threading, time, resource, signal\n"
    "from wakeboard.config import log, streams\n"
    "log.configure({format!r}); log.write_in_background()\n"
)
# Where every line counts: a busy machine may keep the reader waiting for longer than a process waits.
PATIENT = "import atexit; atexit.register(streams.drain, 60)\n"


def start(code: str, stdout: int, stderr: int, format: str = "text") -> subprocess.Popen[bytes]:
    """Start a process that never waits and then does ``code``."""
    program = BEGIN.format(format=format) + code
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=ROOT
    )


def printed_by(code: str) -> tuple[str, int]:
    """Return what a process printed on both streams into one pipe, and its exit code."""
    process = start(PATIENT + code, subprocess.PIPE, subprocess.STDOUT)
    said, _ = process.communicate(timeout=60)
    return said.decode(), process.returncode


def read_all(descriptor: int) -> str:
    """Read until nobody can write any more."""
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read().decode()


def test_lines_of_both_streams_stay_in_order_and_none_is_lost_at_the_end() -> None:
    said, code = printed_by(
        "for n in range(20_000):\n"
        "    print('line', n, file=sys.stderr if n % 2 else sys.stdout)\n"
        "print('no end of line', end='')\nsys.stdout.flush()"
    )
    assert code == 0
    assert said == "".join(f"line {n}\n" for n in range(20_000)) + "no end of line"


@pytest.mark.parametrize(
    ("ending", "code"), [("raise ValueError('the last words')", 1), ("sys.exit('the last words')", 1)]
)
def test_a_crash_is_told_to_its_last_line(ending: str, code: int) -> None:
    said, ended_with = printed_by(f"log.note('Before.')\n{ending}")
    assert ended_with == code
    assert "Before." in said and said.splitlines()[-1].endswith("the last words")


def test_a_thread_that_fails_is_told() -> None:
    said, _ = printed_by("t = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()")
    assert "ZeroDivisionError" in said


def test_a_forked_process_writes_its_own_lines_and_not_its_parents() -> None:
    said, _ = printed_by(
        "log.note('Of the parent, before.')\n"
        "pid = os.fork()\n"
        "log.note('Of the child.' if pid == 0 else 'Of the parent.')\n"
        "pid and os.waitpid(pid, 0)"
    )
    lines = sorted(line.partition(" ")[2] for line in said.splitlines())
    assert lines == ["Of the child.", "Of the parent, before.", "Of the parent."]


def test_a_process_that_ends_tells_what_was_dropped() -> None:
    out, into = os.pipe()
    process = start(
        "for n in range(30_000): log.note(f'Line {n}. ' + 'x' * 200)\n"
        "os.write(1, b'said'); streams.drain(60); log.note('Behind the end.')",
        subprocess.PIPE,
        into,
    )
    os.close(into)
    assert process.stdout is not None and process.stdout.read(4) == b"said"
    said = read_all(out)
    assert process.wait(30) == 0
    *_, told, last = said.splitlines()
    count = int(re.findall(r"([\d,]+) log lines were dropped", told)[0].replace(",", ""))
    assert said.count("Line ") + count == 30_000
    assert last.endswith("Behind the end.")


def test_a_process_can_be_forked_while_its_log_is_stuck() -> None:
    """The child waits neither for a lock of its parent's nor for the parent's lines."""
    out, into = os.pipe()
    process = start(
        "for _ in range(5_000): log.note('x' * 100)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    log.note('y'); os._exit(8)\n"
        "os.write(1, b'%d' % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
        subprocess.PIPE,
        into,
    )
    os.close(into)
    assert process.communicate(timeout=60)[0] == b"8" and process.returncode == 0
    os.close(out)


def test_no_lock_is_held_across_a_fork() -> None:
    """Whichever line another thread is in the middle of, the forked process can log."""
    said, code = printed_by(
        "def talk():\n"
        "    while True: log.move('busy'); print('busy', file=sys.stderr)\n"
        "for _ in range(2): threading.Thread(target=talk, daemon=True).start()\n"
        "for _ in range(40):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        signal.alarm(20); log.note('Child.'); streams.drain(15); os._exit(0)\n"
        "    assert os.waitpid(pid, 0)[1] == 0"
    )
    assert code == 0, said[-2000:]
    assert said.count("Child.") == 40


def test_a_process_ends_whatever_its_other_threads_are_in_the_middle_of() -> None:
    code = (
        "def talk():\n"
        "    while True: print('busy', file=sys.stderr)\n"
        "for _ in range(8): threading.Thread(target=talk, daemon=True).start()\n"
        "time.sleep(0.1)"
    )
    for _ in range(10):
        assert printed_by(code)[1] == 0


def test_a_file_that_somebody_made_one_that_does_not_block_gets_every_line() -> None:
    out, into = os.pipe()
    os.set_blocking(into, False)
    code = "for n in range(3_000): log.note(f'{n} ' + 'x' * 100)"
    process = start(PATIENT + code, subprocess.DEVNULL, into)
    os.close(into)
    assert len(read_all(out).splitlines()) == 3_000
    assert process.wait(30) == 0


def test_what_nobody_reads_is_bounded_and_no_reason_to_wait() -> None:
    out, into = os.pipe()
    began = time.monotonic()
    process = start(
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for _ in range(200_000): log.note('x' * 200)\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "assert grown < 20_000, f'{grown} kB'\nsys.exit(7)",
        subprocess.DEVNULL,
        into,
    )
    os.close(into)
    assert process.wait(60) == 7
    assert time.monotonic() - began < 30
    os.close(out)


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_reader_that_wakes_up_is_told_once_how_many_lines_it_missed(format: str) -> None:
    out, into = os.pipe()
    process = start(
        "for n in range(30_000): log.note(f'Line {n}. ' + 'x' * 200)\n"
        "os.write(1, b'said')\n"
        "while streams._writers[0]._dropped or streams._writers[0]._waiting: time.sleep(0.01)\n"
        "log.note('Afterwards.')",
        subprocess.PIPE,
        into,
        format,
    )
    os.close(into)
    assert process.stdout is not None and process.stdout.read(4) == b"said"
    said = read_all(out)
    assert process.wait(30) == 0
    lines = said.splitlines()
    numbers = [int(found) for found in re.findall(r"Line (\d+)\.", said)]
    assert numbers == list(range(len(numbers)))
    (told,) = (line for line in lines if "lines were dropped" in line)
    assert "lines were dropped because nobody read the log." in told
    count = int(re.findall(r"([\d,]+) log lines", told)[0].replace(",", ""))
    assert len(numbers) + count == 30_000
    assert lines.index(told) == len(numbers) and "Afterwards." in lines[-1]
    if format == "json":
        assert (json.loads(told)["dropped"], json.loads(told)["level"]) == (count, "warning")


def test_a_log_for_which_there_is_no_thread_is_written_when_there_is_one_and_at_the_end() -> None:
    said, code = printed_by(
        "def no_room(thread): raise RuntimeError('no room for a thread')\n"
        "start, threading.Thread.start = threading.Thread.start, no_room\n"
        "print('first')\n"
        "threading.Thread.start = start\n"
        "print('second')\n"
    )
    assert (said, code) == ("first\nsecond\n", 0)
    said, code = printed_by(
        "def no_room(thread): raise RuntimeError('no room for a thread')\n"
        "threading.Thread.start = no_room\n"
        "print('alone')\n"
    )
    assert (said, code) == ("alone\n", 0)
