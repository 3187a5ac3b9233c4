"""`wakeboard rehearse`: it passes, it fails when the ledger is off, and however it ends, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support.demo import as_user, command_line, empty_home, environment, interpreter, lives
from tests.support.processes import Wakeboard, wait_until

USER = "nobody" if os.geteuid() == 0 else None
PROMISED_SECONDS = 90
INTERRUPTED = 130
MIDWAY = "SIGTERM after"
DATABASE_STARTS = "A mail server of its own listens"
LINES = [
    "receipts",
    "restart by SIGTERM",
    "retries",
    "unconfirmed mails",
    "mailbox",
    "cancelled work",
    "left running",
]


@dataclass
class Rehearsal:
    """A rehearsal under way in a home of its own, which is its folder for temporary files too."""

    command: Wakeboard
    home: Path

    def press_ctrl_c(self) -> int:
        """Interrupt the whole group, as a terminal does; return the exit code."""
        os.killpg(self.command.pid, signal.SIGINT)
        return self.command.wait(60)

    def processes(self) -> list[psutil.Process]:
        """Return every living process of it: its own, its workers', the database's."""
        return [each for each in psutil.process_iter() if self._is_ours(each) and lives(each)]

    def _is_ours(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error, OSError):
            return process.environ().get("HOME") == str(self.home) or str(self.home) in command_line(process)
        return False

    def folders(self) -> list[str]:
        """Return the names of what it has in the folder for temporary files."""
        return [each.name for each in self.home.iterdir() if each.name.startswith("wakeboard")]

    def assert_nothing_is_left(self) -> None:
        wait_until(lambda: not self.processes(), 5, "every process of the rehearsal has ended")
        assert self.folders() == []


@pytest.fixture
def home() -> Iterator[Path]:
    """The empty home of an ordinary user."""
    with empty_home(USER) as folder:
        yield folder


@contextmanager
def rehearsal(home: Path, *words: str, user: str | None = USER, database: str = "") -> Iterator[Rehearsal]:
    """Start ``wakeboard rehearse`` in ``home``; after the block, whatever it left is ended."""
    output = home / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [interpreter(user), "-P", "-m", "wakeboard", "rehearse", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=environment(home) | {"TMPDIR": str(home), "WAKEBOARD_DATABASE_URL": database},
            start_new_session=True,
            **as_user(user),
        )
    started = Rehearsal(Wakeboard(process, output), home)
    try:
        yield started
    finally:
        remains = started.processes()
        for each in remains:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()
        psutil.wait_procs(remains, timeout=10)


def test_an_ordinary_user_rehearses_with_success_and_the_configured_database_stays_as_it_was(
    home: Path, database: str
) -> None:
    began = time.monotonic()
    with rehearsal(home, database=database) as started:
        assert started.command.wait(2 * PROMISED_SECONDS) == 0, started.command.output
        assert time.monotonic() - began < PROMISED_SECONDS
        started.assert_nothing_is_left()
        lines = [line for line in started.command.output.splitlines() if line.endswith("  ok")]
    assert [line.split("  ")[0] for line in lines] == LINES
    assert "100 distinct, 100 in all" in lines[4]
    assert "\x1b" not in started.command.output
    with psycopg.connect(database) as connection:
        for table in ("job_runs", "workers", "job_types"):
            found = connection.execute(f"SELECT count(*) FROM wakeboard.{table}".encode()).fetchone()
            assert found == (0,), table


def test_without_the_effects_ledger_it_fails_because_mails_were_sent_twice_and_for_nothing_else(
    home: Path,
) -> None:
    with rehearsal(home, "--without-effects", "--json", user=None) as started:
        assert started.command.wait(2 * PROMISED_SECONDS) == 1, started.command.output
        started.assert_nothing_is_left()
        said = json.loads(started.command.output.splitlines()[-1])
    assert (said["ok"], said["with_effects"]) == (False, False)
    (wrong,) = [line for line in said["lines"] if not line["ok"]]
    assert (wrong["what"], wrong["measured"]) == ("mailbox", "100 distinct, 104 in all")


@pytest.mark.parametrize("moment", [DATABASE_STARTS, MIDWAY])
def test_ctrl_c_leaves_nothing(home: Path, moment: str) -> None:
    with rehearsal(home) as started:
        started.command.wait_for(moment, PROMISED_SECONDS)
        assert started.press_ctrl_c() == INTERRUPTED, started.command.output
        started.assert_nothing_is_left()
        assert "Traceback" not in started.command.output


def test_what_a_killed_rehearsal_left_is_removed_by_the_next(home: Path) -> None:
    with rehearsal(home) as killed:
        killed.command.wait_for(MIDWAY, PROMISED_SECONDS)
        killed.command.kill()
        assert len(killed.folders()) == 1
        with rehearsal(home) as started:
            started.command.wait_for("Removing what a killed rehearsal had left", PROMISED_SECONDS)
            started.command.wait_for("A database of its own is ready", PROMISED_SECONDS)
            assert len(started.folders()) == 1
            assert started.press_ctrl_c() == INTERRUPTED, started.command.output
            started.assert_nothing_is_left()
