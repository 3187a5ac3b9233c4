"""`wakeboard up --demo` on a machine that has never seen it: an empty home, perhaps another OS user."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.support.installation import LINK
from tests.support.processes import SOURCES, Wakeboard, wait_until

# What is promised of a first start, database and history included.
FIRST_START_SECONDS = 120
PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass
class Demo:
    """A running demo: its process, where it is, the link it printed, and its home."""

    up: Wakeboard
    url: str
    link: str
    home: Path

    def press_ctrl_c(self) -> int:
        """Interrupt the whole group, as a terminal does; return the exit code."""
        os.killpg(self.up.pid, signal.SIGINT)
        return self.up.wait(60)

    def processes(self) -> set[psutil.Process]:
        """Return every living process of this demo, the database's too, which is nobody's child."""
        heads = {each for each in psutil.process_iter() if str(self.home) in command_line(each)}
        with suppress(psutil.NoSuchProcess):
            heads.add(psutil.Process(self.up.pid))
        return {each for head in heads for each in (head, *children(head)) if lives(each)}

    def sockets(self) -> list[str]:
        """Return what still listens: the port of the dashboard, socket files in its home."""
        found = [str(file) for file in self.home.rglob("*") if file.is_socket()]
        with socket.socket() as probe:
            address = urlsplit(self.url)
            if probe.connect_ex((str(address.hostname), address.port or 0)) == 0:
                found.append(self.url)
        return found


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def empty_home(user: str | None) -> Iterator[Path]:
    """Give an empty home folder, of ``user`` if one is named, and remove it with all that is in it."""
    home = Path(tempfile.mkdtemp(prefix="wbdemo-", dir="/var/tmp"))
    home.chmod(0o711 if user is None and os.geteuid() == 0 else 0o700)
    if user is not None:
        shutil.chown(home, user)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def running_demo(home: Path, user: str | None = None) -> Iterator[Demo]:
    """Run the demo in ``home`` as ``user`` (None: as who we are) while the block lasts; nothing is left."""
    output = home / "output"
    with output.open("ab") as file:
        process = subprocess.Popen(
            [interpreter(user), "-P", "-m", "wakeboard", "up", "--demo", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=environment(home),
            start_new_session=True,
            **as_user(user),
        )
    up = Wakeboard(process, output)
    before = len(LINK.findall(up.output))
    demo = Demo(up, "", "", home)
    try:
        wait_until(
            lambda: len(LINK.findall(up.output)) > before or process.poll() is not None,
            FIRST_START_SECONDS,
            "the demo prints its login link",
        )
        found = re.findall(rf"({LINK.pattern})", up.output)
        assert process.poll() is None, up.output
        demo.link, demo.url = found[-1]
        yield demo
    finally:
        remains = demo.processes()
        for each in remains:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()
        psutil.wait_procs(list(remains), timeout=10)


def environment(home: Path) -> dict[str, str]:
    """Return what a fresh login has, and where the code under test is."""
    libraries = next(folder for folder in sys.path if folder.endswith("site-packages"))
    variables = {"HOME": str(home), "PATH": PATH, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    if os.geteuid() == 0:
        # As root the default would be this machine's own installation; nobody can write there anyway.
        variables["WAKEBOARD_DATA_DIR"] = str(home / ".local/share/wakeboard")
    return variables | {"PYTHONPATH": f"{SOURCES}:{libraries}", "PYTHONDONTWRITEBYTECODE": "1"}


def as_user(user: str | None) -> dict[str, Any]:
    """Return the ``subprocess`` options that run a command as ``user``."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def interpreter(user: str | None) -> str:
    """Return a Python like ours that ``user`` may run; skips the test where there is none."""
    if user is None:
        return sys.executable
    name = f"/usr/bin/python3.{sys.version_info.minor}"
    for python in (sys.executable, name):
        with suppress(OSError):
            tried = subprocess.run(
                [python, "-P", "-c", "import wakeboard, psycopg, flask"],
                cwd="/",
                env=environment(Path("/nonexistent")),
                capture_output=True,
                **as_user(user),
            )
            if tried.returncode == 0:
                return python
    pytest.skip(f"the OS user {user} may run neither {sys.executable} nor {name} with our libraries")
