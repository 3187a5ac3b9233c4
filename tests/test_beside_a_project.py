"""The installed wheel beside a project whose own modules have the names that projects have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Connection
from tests.support.processes import free_port, wait_until, wakeboard
from tests.test_wheel import AWAY, answers, fetch, installed, run, wheel

__all__ = ["installed", "wheel"]

# Each says whose it is.
OWN = ("config.py", "queue.py", "core/__init__.py", "dashboard/__init__.py", "templates/__init__.py")
HANDLERS = """
import config, core, dashboard
from wakeboard import job


@job("greet")
def greet(ctx):
    return {"whose": [config.WHOSE, core.WHOSE, dashboard.WHOSE], "by": __name__}
"""
TEST = """
import json
import {module} as handlers
from wakeboard import run_now


def test_the_handler_greets():
    answer = json.loads(run_now(handlers.greet, {{}}).result)
    assert answer == {{"whose": ["mine", "mine", "mine"], "by": "{module}"}}
"""
# A `queue.py` first on the path breaks the database driver, with Wakeboard or without.
SEND = """
import sys
import psycopg
sys.path.insert(0, ".")
import {module}
from wakeboard import enqueue

with psycopg.connect(sys.argv[1]) as connection:
    print(enqueue(connection, "greet", {{}}))
"""


@pytest.fixture(params=["worker", "worker.jobs"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A project's folder, with its handlers in the module ``project.name``."""
    folder = tmp_path / str(request.param)
    place = f"{str(request.param).replace('.', '/')}.py"
    files = dict.fromkeys(OWN, "WHOSE = 'mine'\n") | {
        place: HANDLERS,
        "static/site.css": "body { color: red }\n",
        "templates/layout.html": "mine\n",
        "tests/__init__.py": "",
        "conftest.py": "",
        "tests/test_greeting.py": TEST.format(module=request.param),
        "scripts/send.py": SEND.format(module=request.param),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_worker_runs_the_projects_own_handlers(
    installed: Path, project: Path, database: str, connection: Connection
) -> None:
    send = [str(installed / "python"), "scripts/send.py", database]
    run_id = int(run(send, project))
    words = ("tick", "--app", project.name)
    with wakeboard(
        *words, database=database, environment=AWAY, folder=project, program=installed / "wakeboard"
    ) as tick:
        tick.process.wait(60)
    asked = "SELECT outcome, result FROM wakeboard.job_attempts WHERE run_id = %s"
    answer = {"whose": ["mine", "mine", "mine"], "by": project.name}
    assert connection.execute(asked, (run_id,)).fetchone() == ("succeeded", answer), tick.output


def test_the_dashboard_serves_its_own_pages_there(installed: Path, project: Path, database: str) -> None:
    home = f"http://127.0.0.1:{(port := free_port())}"
    words = ("web", "--bind", f"127.0.0.1:{port}")
    with wakeboard(
        *words, database=database, environment=AWAY, folder=project, program=installed / "wakeboard"
    ):
        wait_until(lambda: answers(f"{home}/login"), 30, f"the dashboard answers at {home}")
        assert "Wakeboard" in fetch(f"{home}/login")


def test_the_projects_own_tests_pass(installed: Path, project: Path) -> None:
    assert "1 passed" in run([str(installed / "python"), "-m", "pytest", "-q"], project)


def test_the_wheel_has_two_names_alone(installed: Path) -> None:
    (site,) = installed.parent.glob("lib/python*/site-packages")
    names = {path.name for path in site.iterdir() if ".dist-info" not in path.name}
    assert names - {"dependencies.pth", "__pycache__"} == {"wakeboard", "wakeboard_dashboard"}
