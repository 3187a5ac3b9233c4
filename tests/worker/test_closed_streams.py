"""Every command works where a standard stream is closed, where nobody reads it, and where it is full."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.factories import Connection, row, rows
from tests.support.http_client import Visitor
from tests.support.processes import ROOT, free_port, surroundings, wait_until
from tests.support.workers.worker_processes import SHORT, insert

CLOSED = ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]
# Every command's help in a process of its own, forked from one that has loaded the command line.
EACH_HELP = """
import click, os, sys, tempfile
from wakeboard import cli

def commands(command, words, ctx):
    yield words
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            yield from commands(command.get_command(ctx, name), [*words, name], ctx)

for words in commands(cli.cli, [], click.Context(cli.cli)):
    for closed in ((0,), (1,), (2,), (0, 1, 2)):
        said = tempfile.TemporaryFile()
        pid = os.fork()
        if pid == 0:
            os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
            said.close()
            for number in closed:
                os.close(number)
                setattr(sys, ("stdin", "stdout", "stderr")[number], None)
            sys.argv[1:] = [*words, "--help"]
            try:
                cli.main()
            except SystemExit as end:
                os._exit(end.code or 0)
            os._exit(70)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        text = said.seek(0) or said.read().decode()
        print(code, ("Usage" in text) == (1 not in closed), "bug" in text, closed, *words)
"""


def in_shell(command: str, database: str | None = None, **environment: str) -> tuple[int, str, str]:
    """Run ``wakeboard <command>``, redirections included, to its end; return its code and both outputs."""
    done = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m wakeboard {command}'],
        capture_output=True, text=True, cwd=ROOT, env=surroundings(database, environment), timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_help_of_every_command_needs_no_open_stream() -> None:
    said = subprocess.run(
        [sys.executable, "-c", EACH_HELP], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert len(lines) > 4 * 50
    assert [line for line in lines if not line.startswith("0 True False ")] == []


@pytest.mark.parametrize("closed", CLOSED)
def test_commands_work_where_a_stream_is_closed(database: str, connection: Connection, closed: str) -> None:
    for command in ("runs", "runs --json", "config", "doctor"):
        code, out, err = in_shell(
            f"{command} {closed}", database, WAKEBOARD_APP="tests.support.workers.apps.motion"
        )
        assert code == 0, (command, out, err)
        assert bool(out) == (">&-" not in closed.replace("2>&-", "") and command != "runs"), (command, out)
        assert "bug" not in err, err
    assert in_shell(f"nonsense {closed}", database)[0] == 2
    run_id = insert(connection, "quick")
    assert in_shell(f"tick {closed}", database, **SHORT)[0] == 0
    assert row(connection, run_id)["status"] == "succeeded"
    enqueue = in_shell(f"enqueue quick {closed}", database)
    assert enqueue[0] == 0 and len(rows(connection, "job_runs")) == 2, enqueue


@pytest.mark.parametrize("closed", CLOSED[2:])
def test_what_serves_works_where_a_stream_is_closed(
    database: str, connection: Connection, closed: str
) -> None:
    address = f"127.0.0.1:{free_port()}"
    visitor = Visitor(f"http://{address}")

    def start(command: str) -> subprocess.Popen[bytes]:
        words = f'exec "{sys.executable}" -m wakeboard {command} {closed}'
        environment = surroundings(database, SHORT | {"WAKEBOARD_BIND": address})
        return subprocess.Popen(["bash", "-c", words], cwd=ROOT, env=environment, start_new_session=True)

    started = [start("worker"), start("web")]
    try:
        run_id = insert(connection, "quick")
        wait_until(lambda: row(connection, run_id)["status"] == "succeeded", 30, "the run is done")
        wait_until(visitor.is_answered, 30, "the dashboard answers")
        for each in started:
            each.terminate()
        assert [each.wait(30) for each in started] == [0, 0]
    finally:
        for each in started:
            each.kill()
            each.wait()


@pytest.mark.parametrize("command", ["--help", "config", "config --json", "runs --help"])
def test_a_reader_that_leaves_early_is_no_failure_to_speak_of(command: str) -> None:
    out, into = os.pipe()
    os.close(out)
    try:
        said = _run(command, stdout=into, stderr=subprocess.PIPE)
    finally:
        os.close(into)
    assert said.stderr == b""


@pytest.mark.parametrize("is_full", [False, True])
def test_who_cannot_be_told_on_the_way_gets_the_same_code_and_work(
    database: str, connection: Connection, is_full: bool
) -> None:
    if is_full:
        into = os.open("/dev/full", os.O_WRONLY)
    else:
        out, into = os.pipe()
        os.close(out)
    try:
        assert _run("nonsense", stdout=subprocess.PIPE, stderr=into).returncode == 2
        first, other = (insert(connection, "quick") for _ in range(2))
        words = f"cancel 999999999 {first} 999999998 {other}"
        assert _run(words, stdout=subprocess.PIPE, stderr=into, database=database).returncode == 2
        assert {row(connection, each)["status"] for each in (first, other)} == {"cancelled"}
    finally:
        os.close(into)


def test_a_full_disk_is_told_in_a_sentence() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        said = _run("config", stdout=full.fileno(), stderr=subprocess.PIPE)
    assert (said.returncode, said.stderr) == (1, b"The system: No space left on device.\n")


def _run(words: str, database: str | None = None, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, "-m", "wakeboard", *words.split()]
    return subprocess.run(program, cwd=ROOT, env=surroundings(database), timeout=60, **streams)
