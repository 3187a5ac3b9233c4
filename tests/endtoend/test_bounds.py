"""The versions of other packages that the product may be installed beside, tried at their lowest.

Their highest are those that the other tests run on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.postgres.servers import Server
from tests.support.processes import ROOT, surroundings

# What applications have that were begun years ago, or are kept at a version.
HELD_BY_APPLICATIONS = [
    ("alembic", "1.13.1"),
    ("click", "8.1.7"),
    ("flask", "3.0.3"),
    ("gunicorn", "23.0.0"),
    ("jinja2", "3.1.4"),
    ("prometheus-client", "0.20.0"),
    ("psutil", "5.9.8"),
    ("psycopg", "3.2.9"),
    ("sqlalchemy", "2.0.25"),
    ("tzdata", "2024.1"),
    ("werkzeug", "3.0.6"),
]
# What the tests themselves need, in the versions of these tests.
OF_TESTS = ("asyncpg", "hypothesis", "pytest", "pytest-timeout")
# By each kind of connection, with a worker, over HTTP: a part of every layer that another package is under.
PART = [
    "tests/worker/test_enqueue.py",
    "tests/worker/test_enqueue_targets.py",
    "tests/worker/test_migrations.py",
    "tests/worker/test_worker_runs.py::test_a_plain_insert_is_a_run_that_succeeds_in_three_seconds",
    "tests/worker/test_worker_runs.py::test_a_cancelled_handler_that_checks_ends_within_a_second",
    "tests/worker/test_effects.py::test_the_handlers_writes_and_the_end_of_its_run_are_one_commit",
    "tests/endtoend/test_the_door.py",
]
# Needs packages that applications alone have.
LEFT_OUT = "not django and not psycopg2"
INSTALL_SECONDS = 240
PART_SECONDS = 240


def requirements() -> dict[str, Requirement]:
    """What the product needs, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {canonicalize_name(one.name): one for one in map(Requirement, project["dependencies"])}


def lowest(requirement: Requirement) -> Version:
    """The lowest version that ``requirement`` takes."""
    return max(Version(one.version) for one in requirement.specifier if one.operator in (">=", "=="))


@pytest.mark.parametrize(("name", "version"), HELD_BY_APPLICATIONS)
def test_an_application_may_keep_what_it_has(name: str, version: str) -> None:
    assert requirements()[name].specifier.contains(version)


def test_the_lowest_and_the_highest_are_told_apart() -> None:
    """What other tests run on is not what is tried here."""
    here = installed(Path(sys.executable))
    assert any(here[name] > lowest(one) for name, one in requirements().items())
    assert all(one.specifier.contains(here[name]) for name, one in requirements().items())


@pytest.mark.timeout(INSTALL_SECONDS + PART_SECONDS + 60)
def test_a_part_of_these_tests_passes_on_the_lowest_versions(server: Server, tmp_path: Path) -> None:
    python = environment_of_the_lowest(tmp_path)
    found = installed(python)
    assert {name: found[name] for name in requirements()} == {
        name: lowest(one) for name, one in requirements().items()
    }
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-k", LEFT_OUT, *PART]
    given = {"WAKEBOARD_TEST_DATABASE_URL": server.admin_url}
    run(command, PART_SECONDS, given)


def environment_of_the_lowest(folder: Path) -> Path:
    """Make an environment in ``folder`` with the checkout and the lowest of what it needs; its Python."""
    constraints = folder / "lowest.txt"
    pins = [f"{name}=={lowest(one)}" for name, one in requirements().items()]
    here = installed(Path(sys.executable))
    constraints.write_text("\n".join([*pins, *(f"{name}=={here[name]}" for name in OF_TESTS)]) + "\n")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], INSTALL_SECONDS)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", f"--python={python}"]
    options = ["--only-binary=:all:", "--root-user-action=ignore", "--constraint", str(constraints)]
    run([*pip, "install", *options, "--editable", str(ROOT), *OF_TESTS], INSTALL_SECONDS)
    return python


def installed(python: Path) -> dict[str, Version]:
    """The versions of all packages that ``python`` finds, by name."""
    ask = (
        "import json, importlib.metadata as known;"
        "print(json.dumps({one.name: one.version for one in known.distributions()}))"
    )
    said = json.loads(run([str(python), "-P", "-c", ask], 60, {"PYTHONPATH": ""}))
    return {canonicalize_name(name): Version(version) for name, version in said.items()}


def run(command: list[str], seconds: int, more: dict[str, str] | None = None) -> str:
    """Run a command to its good end; return what it printed."""
    done = subprocess.run(
        command, cwd=ROOT, env=surroundings(None, more), capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout
