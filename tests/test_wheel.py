"""The wheel alone is the product: installed into an empty environment it has everything it needs."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.support.processes import ROOT, free_port, surroundings, wait_until, wakeboard

# Each with the folder that it is below.
PACKAGES = (
    ("worker", "wakeboard"), ("dashboard", "wakeboard_dashboard"), ("", "templates"), ("", "static"),
)  # fmt: skip
# Nothing of the checkout, nor of the environment that runs the tests.
AWAY = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of an environment that holds the wheel; its dependencies are those of the tests."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", str(home)], Path("/"))
    python = home / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--root-user-action=ignore", str(wheel)]
    run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", f"--python={python}", *install],
        Path("/"),
    )
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def run(command: list[str], folder: Path) -> str:
    """Run a command to its good end, away from the checkout's variables; return what it printed."""
    done = subprocess.run(
        command, cwd=folder, env=surroundings(None, AWAY), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_the_product(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {
        re.sub(r"^(templates|static)/", r"wakeboard_dashboard/_ui/\1/", str(path.relative_to(ROOT / source)))
        for source, package in PACKAGES
        for path in (ROOT / source / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == wanted


def test_the_installed_program_is_the_wheels_and_runs_from_anywhere(installed: Path) -> None:
    ask = "import wakeboard; from wakeboard_dashboard import app; print(wakeboard.__file__, app.ui_root())"
    for place in run([str(installed / "python"), "-c", ask], Path("/")).split():
        assert Path(place).is_relative_to(installed.parent)
    assert "Usage: wakeboard" in run([str(installed / "wakeboard"), "--help"], Path("/"))


HANDLERS = """
from wakeboard import Context, EnqueueError, Permanent, enqueue, job, run_now


@job("greet", max_attempts=5, timeout="30s")
def greet(ctx: Context) -> dict[str, str]:
    if not ctx.payload:
        raise Permanent("nobody", "There is nobody to greet.")
    return {"said": f"Hello {ctx.payload['name']}"}


@job("later")
async def later(ctx: Context) -> None:
    try:
        enqueue(None, "greet", {"name": ctx.key}, delay=60)
    except EnqueueError as refused:
        ctx.log.warning("%s", refused)


assert run_now(greet, {"name": "Ada"}).kind == "returned"
"""


def test_handlers_are_checked_against_the_types_of_the_installed_package(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    python = ["--python-executable", str(installed / "python")]
    said = run([sys.executable, "-m", "mypy", "--strict", *python, "handlers.py"], tmp_path)
    assert said.startswith("Success")
    (tmp_path / "wrong.py").write_text(HANDLERS.replace("delay=60", "delay='soon'"))
    with pytest.raises(AssertionError, match='incompatible type "str"'):
        run([sys.executable, "-m", "mypy", "--strict", *python, "wrong.py"], tmp_path)


def test_the_installed_program_migrates_a_database(installed: Path, empty_database: str) -> None:
    upgrade = "import sys; from wakeboard.database.migrations import migrate; print(*migrate(sys.argv[1]))"
    assert run([str(installed / "python"), "-c", upgrade, empty_database], Path("/")).startswith("None 0")


def test_the_installed_dashboard_serves_a_page_with_its_files(installed: Path, database: str) -> None:
    port = free_port()
    home = f"http://127.0.0.1:{port}"
    words = ("web", "--bind", f"127.0.0.1:{port}")
    with wakeboard(
        *words, database=database, environment=AWAY, folder=Path("/"), program=installed / "wakeboard"
    ):
        wait_until(lambda: answers(f"{home}/login"), 30, f"the dashboard answers at {home}")
        page = fetch(f"{home}/login")
        files = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page))
        assert any(".css" in name for name in files)
        assert any(".js" in name for name in files)
        for name in files:
            assert fetch(home + name)


def answers(url: str) -> bool:
    try:
        return bool(fetch(url))
    except (urllib.error.URLError, ConnectionError):
        return False


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        assert response.status == 200
        body: bytes = response.read()
    return body.decode("utf-8", "replace")
