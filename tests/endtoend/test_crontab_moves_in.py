"""A crontab moves in: looked at, imported, run, and its failures explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.factories import rows
from tests.support.http_client import Visitor
from tests.support.installation import Household, wait_for_end
from tests.support.processes import run_wakeboard, wait_until

CRONTAB = """\
# The shop's night
MAILTO=ops@example.com
STOCK={folder}/stock
*/5 * * * *      echo "counted $STOCK" > {folder}/counted
0 2 * * *        {folder}/backup.sh --all
30 6 * * mon-fri cat > {folder}/letter%Dear customer,%thank you.
@daily           date +\\%F > {folder}/day
15 3 1 jan,jul * true
0 25 * * *       echo never
@reboot          echo at the start
0 4 * * 7        test -z "$WAKEBOARD_DATABASE_URL"
"""
DUE_NOW = """
UPDATE wakeboard.job_definitions SET next_fire_at = date_trunc('minute', now()) WHERE name = ANY(%s)
"""
BACKUP = """\
#!/bin/sh
echo "mounting the disk"
echo "the disk is full" >&2
exit 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a crontab of twelve lines and a script that fails."""
    made = tmp_path_factory.mktemp("night")
    made.chmod(0o755)
    (made / "backup.sh").write_text(BACKUP)
    (made / "backup.sh").chmod(0o755)
    (made / "crontab").write_text(CRONTAB.format(folder=made) + "0 5 * * * exit 7")
    return made


@pytest.fixture(scope="module")
def imported(household: Household, folder: Path, command: Callable[..., Any]) -> dict[int, str]:
    """The definitions' names by line, after an import."""
    items = command("import-crontab", str(folder / "crontab"), "--timezone", "Europe/Paris")["items"]
    return {item["line"]: item["name"] for item in items if item["name"]}


def test_a_dry_run_says_everything_and_changes_nothing(folder: Path, database: str) -> None:
    words = ("import-crontab", str(folder / "crontab"), "--dry-run", "--json")
    said = run_wakeboard(*words, database=database)
    assert said.returncode == 0, said.stderr
    results = {item["line"]: item["result"] for item in json.loads(said.stdout)["items"]}
    assert results == {
        2: "noted", 4: "created", 5: "created", 6: "created", 7: "created", 8: "created",
        9: "refused", 10: "refused", 11: "created", 12: "created",
    }  # fmt: skip
    listed = run_wakeboard("schedule", "list", "--json", database=database)
    assert json.loads(listed.stdout)["items"] == []


def test_a_second_import_changes_nothing(
    imported: dict[int, str], folder: Path, command: Callable[..., Any], shared: Connection
) -> None:
    before = rows(shared, "job_definitions")
    again = command("import-crontab", str(folder / "crontab"), "--timezone", "Europe/Paris")
    assert {item["result"] for item in again["items"] if item["name"]} == {"unchanged"}
    assert rows(shared, "job_definitions") == before


def test_due_lines_run_as_cron_would_run_them(
    imported: dict[int, str], folder: Path, shared: Connection, command: Callable[..., Any]
) -> None:
    shared.execute(DUE_NOW, ([imported[line] for line in (4, 8)],))
    for line in (6, 7, 11):
        command("schedule", "run", imported[line])
    for line in (4, 6, 7, 8, 11):
        assert wait_for_end(shared, first_run(shared, imported[line])) == "succeeded", CRONTAB.split("\n")[
            line - 1
        ]
    assert (folder / "counted").read_text() == f"counted {folder}/stock\n"
    assert (folder / "letter").read_text() == "Dear customer,\nthank you.\n"
    assert (folder / "day").read_text()[:2] == "20"


def first_run(connection: Connection, name: str) -> int:
    """Return the run of the definition ``name``, as soon as there is one."""
    of_it = "definition_id = (SELECT id FROM wakeboard.job_definitions WHERE name = %s)"
    return int(wait_until(lambda: rows(connection, "job_runs", of_it, name), 20, f"{name} fires")[0]["id"])


def test_a_failing_script_says_how_it_ended_and_what_it_printed(
    imported: dict[int, str], shared: Connection, command: Callable[..., Any], admin: Visitor
) -> None:
    command("schedule", "run", imported[5])
    run_id = first_run(shared, imported[5])
    assert wait_for_end(shared, run_id) == "dead"
    page = admin.get(f"/runs/{run_id}").text
    assert "exit_3" in page
    assert "the disk is full" in page
    twin = admin.get(f"/runs/{run_id}.json").json
    assert twin["error_code"] == "exit_3"
    assert "the disk is full" in twin["history"][0]["output_tail"]
    assert "mounting the disk" in twin["history"][0]["output_tail"]
    assert run_id in [each["id"] for each in admin.get("/runs.json?error=exit_3").json["items"]]
