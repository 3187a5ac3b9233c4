"""What is started in a folder that was removed, and what goes on when it is removed later."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.factories import Connection
from tests.support.processes import free_port, surroundings, wait_until, wakeboard
from tests.support.workers.worker_processes import SHORT, insert, wait_until_status
from wakeboard.config.settings import Settings

PROCESSES = Settings().web_processes

COMMANDS = (["worker"], ["worker", "--app", "jobs"], ["tick"], ["up"], ["web"])
OTHERS = (
    ["runs"],
    ["workers", "list"],
    ["doctor", "--app", "tests.support.workers.apps.motion"],
    ["config"],
    ["db", "check"],
)


def run_in_removed_folder(
    folder: Path, *words: str, database: str, module: str = "wakeboard"
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder that is removed before the command begins."""
    folder.mkdir()
    arguments = [sys.executable, "-P", "-m", module, *words]
    program = f"import os; os.rmdir({str(folder)!r}); os.execv({sys.executable!r}, {arguments!r})"
    return subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, cwd=folder,
        env=surroundings(database), timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_serves_says_in_one_sentence_that_its_folder_is_gone(
    shared_database: str, tmp_path: Path, words: list[str]
) -> None:
    ended = run_in_removed_folder(tmp_path / "gone", *words, database=shared_database)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.strip() == (
        "The folder in which this was started is gone. Change into one that is there (cd) and start it again."
    )


def test_the_dashboard_as_a_module_says_that_its_folder_is_gone(shared_database: str, tmp_path: Path) -> None:
    ended = run_in_removed_folder(tmp_path / "gone", database=shared_database, module="wakeboard_dashboard")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr


@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_every_other_command_works_in_a_removed_folder(
    shared_database: str, tmp_path: Path, words: list[str]
) -> None:
    ended = run_in_removed_folder(tmp_path / "gone", *words, database=shared_database)
    assert "Traceback" not in ended.stderr, ended.stderr
    assert "bug in Wakeboard" not in ended.stderr, ended.stderr
    assert ended.returncode == 0, ended.stderr


def test_up_restarts_its_worker_and_web_its_processes_although_their_folder_is_gone(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    release.mkdir()
    port = free_port()
    with wakeboard("up", "--port", str(port), database=database, environment=SHORT, folder=release) as up:
        up.wait_for("Wakeboard is at", 90)
        worker = "SELECT pid FROM wakeboard.workers"
        found = wait_until(lambda: connection.execute(worker).fetchone(), 30, "the worker is there")
        release.rmdir()
        psutil.Process(found[0]).kill()
        web = next(
            each
            for each in psutil.Process(up.pid).children()
            if each.pid != found[0] and "wakeboard_dashboard" in each.cmdline()
        )
        wait_until(lambda: len(web.children()) == PROCESSES, 30, "the dashboard has its processes")
        killed = web.children()
        for each in killed:
            each.kill()
        wait_until(
            lambda: len({*web.children()} - {*killed}) == PROCESSES,
            30,
            "the dashboard has processes again",
        )
        run_id = insert(connection, "quick")
        wait_until_status(connection, run_id, "succeeded", seconds=60)

        def answers() -> bool:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
                return bool(answer.status == 200)
            return False

        wait_until(answers, 30, "the dashboard answers")
        assert up.terminate(60) == 0, up.output
