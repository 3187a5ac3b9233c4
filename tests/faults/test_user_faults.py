"""OS users: the lines of a system crontab, and workers of several users on one database."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.demo import environment, interpreter
from tests.support.faults.deployment import House
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.page_users import ADMIN
from tests.support.postgres.wire_proxy import between
from tests.support.processes import ROOT, run_wakeboard, surroundings, wait_until
from wakeboard.queue import definitions
from wakeboard.queue.definitions import Definition

Measured = Callable[[str], None]
ONE, OTHER = "www-data", "nobody"
ASKS = 'echo "$(id -un)/$(id -ru)/$(id -Gn)/$HOME/$LOGNAME/$USER/$SHELL"'
CRONTAB = "".join(f"0 5 1 1 * {user} {ASKS}\n" for user in ("root", ONE, OTHER))
# An interpreter that every user may run finds the product and its libraries so.
OPEN_TO_ALL = {"PYTHONPATH": environment(ROOT)["PYTHONPATH"]}
OUTPUT = """
SELECT a.output_tail FROM wakeboard.job_attempts AS a JOIN wakeboard.job_runs AS r ON r.id = a.run_id
WHERE r.id = %s AND r.status = 'succeeded' AND a.outcome = 'succeeded'
"""
FORGE = """
INSERT INTO wakeboard.job_runs (job_type, definition_id, max_attempts)
SELECT %(job_type)s, id, 1 FROM wakeboard.job_definitions WHERE name = %(name)s RETURNING id
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that is ``wakeboard``, started by ONE; without such users the row is skipped."""
    lacking = {ONE, OTHER} - {entry.pw_name for entry in pwd.getpwall()}
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to start a worker of another OS user")
    if lacking:
        pytest.skip(f"there is no user {', '.join(sorted(lacking))} here")
    words = ["setpriv", f"--reuid={ONE}", f"--regid={pwd.getpwnam(ONE).pw_gid}", "--init-groups"]
    made = tmp_path / "wakeboard"
    made.write_text(f'#!/bin/sh\nexec {" ".join([*words, interpreter(ONE), "-P", "-m", "wakeboard"])} "$@"\n')
    made.chmod(0o755)
    return made


def _is_of(user: str) -> str:
    """What ASKS prints for ``user``."""
    entry = pwd.getpwnam(user)
    groups = subprocess.run(["id", "-Gn", user], capture_output=True, text=True, check=True).stdout.strip()
    return "/".join([user, str(entry.pw_uid), groups, entry.pw_dir, user, user, "/bin/sh"])


class Table:
    """The crontab's lines in a house, and who ran them."""

    def __init__(self, house: House, program: Path) -> None:
        """``program`` is ``wakeboard``, started by ONE."""
        self.house = house
        self.program = program
        self.names: dict[str, str] = {}

    def import_all(self, database: str) -> None:
        """Let ONE import the crontab, by a way to the database that is open to it."""
        said = subprocess.run(
            [self.program, "import-crontab", "-", "--system", "--json"], input=CRONTAB,
            capture_output=True, text=True, cwd=ROOT, env=surroundings(database, OPEN_TO_ALL), timeout=60,
        )  # fmt: skip
        assert said.returncode == 0, said.stderr
        items = json.loads(said.stdout)["items"]
        users = CRONTAB.splitlines()
        self.names = {users[item["line"] - 1].split()[5]: item["name"] for item in items if item["name"]}

    def run(self, user: str) -> int:
        """Enqueue a run of the line of ``user``; return its id."""
        run_id = definitions.run_now(self.house.connection, self.names[user], ADMIN).id
        assert isinstance(run_id, int)
        return run_id

    def output(self, run_id: int) -> str:
        """Return what a run has printed, once it has succeeded."""

        def printed() -> str | None:
            row = self.house.connection.execute(OUTPUT, (run_id,)).fetchone()
            return row and row[0]

        return str(wait_until(printed, 20, f"run {run_id} succeeds")).strip()

    def forge(self, job_type: str, user: str) -> int:
        """Write a run of ``job_type`` that points at the line of ``user``, past every check, by SQL."""
        values = {"job_type": job_type, "name": self.names[user]}
        row = self.house.connection.execute(FORGE, values).fetchone()
        assert row is not None
        return int(row[0])


@fault(
    "F88",
    injected="a system crontab of three users, imported by one of them; workers of two; runs forged by SQL",
    expected="each line runs as its own user or waits and says for whom; no forged run starts",
)
def test_a_line_of_a_system_crontab_runs_as_its_user_alone(
    program: Path, house: House, scale: Scale, measured: Measured
) -> None:
    table = Table(house, program)
    definitions.add(house.connection, Definition("own", "command", None, {"argv": ["id", "-un"]}), ADMIN)
    rounds, own, become = scale.times(1, 10), 0, 0
    with between(house.database) as middleman:
        table.import_all(middleman.url)
        first = house.worker()
        waiting = table.run(ONE)
        table.names["own"] = "own"
        assert table.output(table.run("own")) == "root", "a command without a user is of the worker's own"
        said = run_wakeboard("run", str(waiting), database=house.database).stdout
        assert house.counts([waiting]) == {"queued": 1}, "root's worker leaves a command of another user"
        assert (
            f"No live worker runs commands as {ONE}: start a worker as that user, or a worker as root with "
            f"WAKEBOARD_RUN_AS_USERS={ONE}." in said
        )
        theirs = house.worker(program=table.program, database=middleman.url, environment=OPEN_TO_ALL)
        assert table.output(waiting) == _is_of(ONE)
        for _ in range(rounds):
            ids = {user: table.run(user) for user in ("root", ONE)}
            assert {user: table.output(run_id) for user, run_id in ids.items()} == {
                user: _is_of(user) for user in ids
            }
            own += len(ids)
        forged = [table.forge(f"command:{ONE}", "root"), table.forge("command:root", ONE)]
        house.wait_until_status(forged, "dead")
        assert theirs.terminate() == 0
        assert first.terminate() == 0
        house.worker(RUN_AS_USERS=f"{ONE},{OTHER}")
        for _ in range(rounds):
            ids = {user: table.run(user) for user in ("root", ONE, OTHER)}
            assert {user: table.output(run_id) for user, run_id in ids.items()} == {
                user: _is_of(user) for user in ids
            }
            become += len(ids)
        house.settle()
        house.check()
    measured(
        f"{own} runs by workers of their own user, {become} by root told so, each as its user with their "
        f"groups and home; {len(forged)} of {len(forged)} forged runs refused"
    )
