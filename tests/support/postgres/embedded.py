"""Embedded servers of tests: where they live, what they are asked, how they die, and who knocks at them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg

from tests.support.postgres.servers import make_folder, memory
from tests.support.processes import ROOT
from wakeboard.database import embedded
from wakeboard.database.embedded.cluster_owner import owner_uid

AS_ROOT = os.geteuid() == 0
FAST = {"fsync": "off"}
START_SECONDS = 30

START = "from wakeboard.database import embedded; s = embedded.start(D, settings={'fsync': 'off'})\n"
# The interpreter may lie where only root can read, so everything is imported before the change of user.
BECOME_NOBODY = """
import os, pwd, sys, psycopg, psutil, encodings.idna
from wakeboard.database import embedded
nobody = pwd.getpwnam("nobody")
os.setgroups([]); os.setresgid(*[nobody.pw_gid] * 3); os.setresuid(*[nobody.pw_uid] * 3)
os.environ["HOME"] = str(D.parent)
"""
CONNECT = """
try:
    psycopg.connect(URL)
    print("connected")
except psycopg.OperationalError as refused:
    print("refused", refused)
"""


@contextmanager
def short_folder() -> Iterator[Path]:
    """Give a folder with a short path that every OS user may pass through but not list.

    Afterwards the servers below it are stopped, and it is gone.
    """
    made = make_folder(memory() or Path("/tmp"))
    try:
        yield made
    finally:
        for home in [*made.rglob("postgres")]:
            if (home / "data").is_dir():
                place = socket_folder(home.parent)
                embedded.stop(home.parent, only_if_unused=False)
                shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(made)


def long_folder(folder: Path) -> Path:
    """Return a data folder whose path is too long for the address of a socket."""
    return folder / ("long" * 30) / "d"


def socket_folder(data_dir: Path) -> Path:
    """Return the folder of the socket of ``data_dir`` as its URL names it."""
    return Path(str(psycopg.conninfo.conninfo_to_dict(embedded.url(data_dir))["host"]))


def launch(data_dir: Path, code: str) -> subprocess.Popen[str]:
    """Start a Python process, ``D`` its data folder, that leads its own group as a shell's command does."""
    return subprocess.Popen(
        _script(data_dir, code),
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def run(data_dir: Path, code: str) -> str:
    """Run Python code in another process and return what it prints; its failure is the test's."""
    done = subprocess.run(_script(data_dir, code), cwd=ROOT, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def as_nobody(data_dir: Path, code: str) -> str:
    """Run Python code as the OS user ``nobody``; return what it prints. Needs root."""
    return run(data_dir, BECOME_NOBODY + code)


def _script(data_dir: Path, code: str) -> list[str]:
    return [sys.executable, "-c", f"from pathlib import Path; D = Path({str(data_dir)!r})\n{code}"]


def server_user(data_dir: Path) -> int:
    """Return the id of the OS user that the cluster belongs to."""
    uid = owner_uid(data_dir / "postgres")
    assert uid is not None
    return uid


def stranger_process(data_dir: Path) -> subprocess.Popen[bytes]:
    """Start a process of the very user that runs the server: the hardest one to tell from a postmaster."""
    if AS_ROOT:
        return subprocess.Popen(["/bin/sleep", "600"], user=server_user(data_dir), cwd="/")
    return subprocess.Popen(["/bin/sleep", "600"])


def lives(pid: int) -> bool:
    """Tell whether the process runs; one that ended and waits for init to notice does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_all(pid: int) -> None:
    """Kill a postmaster and everything below it, as a power cut does."""
    postmaster = psutil.Process(pid)
    everyone = [postmaster, *postmaster.children(recursive=True)]
    for process in everyone:
        # The others may follow their postmaster before it is their turn.
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(everyone, timeout=10)


def ask(url: str, question: str) -> object:
    """Return the first value of the first row of the answer."""
    with psycopg.connect(url) as session:
        row = session.execute(question.encode()).fetchone()
    assert row is not None
    return row[0]


def modes(path: Path) -> dict[str, int]:
    """Return the permissions of a folder and of all its parents."""
    return {str(parent): stat.S_IMODE(parent.stat().st_mode) for parent in [path, *path.parents]}


def pretend_pid(data_dir: Path, pid: int) -> None:
    """Let the files of a dead server name the process ``pid``, as after a reboot that dealt numbers anew."""
    for file in _pid_files(data_dir):
        file.write_text("\n".join([str(pid), *file.read_text().split("\n")[1:]]))


def tear_pid_files(data_dir: Path, text: str) -> None:
    """Leave ``text`` in the files that name a server's process, as a full disk does."""
    for file in _pid_files(data_dir):
        file.write_text(text)


def _pid_files(data_dir: Path) -> list[Path]:
    return [data_dir / "postgres/data/postmaster.pid", data_dir / "postgres/socket/.s.PGSQL.5432.lock"]


def tear_own_files(data_dir: Path) -> None:
    """Leave rubbish in the files that Wakeboard itself keeps beside the cluster."""
    for name in ["postgres/start.lock", "postgres/server.lock", "postgres/use.lock", "postgres/startup.log"]:
        (data_dir / name).write_text("{torn")
    for name in ["pg_hba.conf", "pg_ident.conf", "pg_hba.conf.new"]:
        (data_dir / name).write_text("local all")


def interrupt_initdb(data_dir: Path) -> None:
    """Leave a cluster as an initdb does that was killed half way; what was in it is gone."""
    (data_dir / "postgres/data").rename(data_dir / "postgres/data.new")
    (data_dir / "postgres/data.new/PG_VERSION").unlink()
