"""The embedded PostgreSQL on real processes: dirty starts, dead starters, foreign users, long recoveries."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from worker import embedded
from worker.embedded import EmbeddedError
from worker.embedded.identity import Identity, first_blocked, holder

ROOT = Path(__file__).parents[2]
AS_ROOT = os.geteuid() == 0
FAST = {"fsync": "off"}
START_SECONDS = 30

only_root = pytest.mark.skipif(not AS_ROOT, reason="needs root to become another OS user")

START = "from worker import embedded; s = embedded.start(D, settings={'fsync': 'off'})\n"
# The interpreter may lie where only root can read, so everything is imported before the change of user.
BECOME_NOBODY = """
import os, pwd, sys, psycopg, psutil, encodings.idna
from worker import embedded
nobody = pwd.getpwnam("nobody")
os.setgroups([]); os.setresgid(*[nobody.pw_gid] * 3); os.setresuid(*[nobody.pw_uid] * 3)
os.environ["HOME"] = str(D.parent)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path that every OS user may pass through but not list."""
    made = Path(tempfile.mkdtemp(prefix="wb-", dir="/tmp"))
    made.chmod(0o711)
    yield made
    for home in [*made.rglob("postgres")]:
        embedded.stop(home.parent, only_if_unused=False)
        shutil.rmtree(socket_folder(home.parent), ignore_errors=True)
    shutil.rmtree(made)


@pytest.fixture
def data_dir(folder: Path) -> Path:
    return folder / "d"


def socket_folder(data_dir: Path) -> Path:
    """Return the folder of the socket of ``data_dir`` as its URL names it."""
    return Path(str(psycopg.conninfo.conninfo_to_dict(embedded.url(data_dir))["host"]))


def script(data_dir: Path, code: str) -> list[str]:
    return [sys.executable, "-c", f"from pathlib import Path; D = Path({str(data_dir)!r})\n{code}"]


def launch(data_dir: Path, code: str) -> subprocess.Popen[str]:
    """Start a Python process that leads its own group, as a shell's foreground command does."""
    return subprocess.Popen(
        script(data_dir, code),
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def run(data_dir: Path, code: str) -> str:
    """Run Python code in another process and return what it prints; its failure is the test's."""
    done = subprocess.run(script(data_dir, code), cwd=ROOT, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def server_user(data_dir: Path) -> int:
    uid = holder(data_dir / "postgres")
    assert uid is not None
    return uid


def lives(pid: int) -> bool:
    """Tell whether the process runs; one that ended and waits for init to notice does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def family(pid: int) -> list[psutil.Process]:
    postmaster = psutil.Process(pid)
    return [postmaster, *postmaster.children(recursive=True)]


def kill_all(pid: int) -> None:
    everyone = family(pid)
    for process in everyone:
        # The others may follow their postmaster before it is their turn.
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(everyone, timeout=10)


def eventually(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def ask(url: str, question: str) -> object:
    with psycopg.connect(url) as session:
        row = session.execute(question).fetchone()
    assert row is not None
    return row[0]


def modes(path: Path) -> dict[str, int]:
    return {str(parent): stat.S_IMODE(parent.stat().st_mode) for parent in [path, *path.parents]}


def foreign_process(data_dir: Path) -> subprocess.Popen[bytes]:
    """A process of the very user that runs the server: the hardest one to tell from a postmaster."""
    if AS_ROOT:
        return subprocess.Popen(["/bin/sleep", "600"], user=server_user(data_dir), cwd="/")
    return subprocess.Popen(["/bin/sleep", "600"])


# --- what a server is


def test_a_first_start_makes_a_database_whose_owner_is_no_superuser(
    data_dir: Path,
) -> None:
    server = embedded.start(data_dir, settings=FAST)

    assert server.started_here and lives(server.pid)
    assert ask(server.url, "SELECT current_database() || ' ' || current_user") == "wakeboard wakeboard"
    assert ask(server.url, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
    assert ask(server.url, "SELECT current_setting('server_version_num')::int / 10000") == 18
    facts = (
        "current_setting('data_checksums'), current_setting('TimeZone'), current_setting('server_encoding')"
    )
    assert ask(server.url, f"SELECT concat_ws(' ', {facts})") == "on UTC UTF8"
    assert (
        ask(server.url, "SELECT datlocale FROM pg_database WHERE datname = current_database()") == "C.UTF-8"
    )


def test_a_second_start_attaches_to_the_running_server(data_dir: Path) -> None:
    first = embedded.start(data_dir, settings=FAST)
    second = embedded.start(data_dir)

    assert (second.pid, second.url, second.started_here) == (first.pid, first.url, False)
    assert embedded.url(data_dir) == first.url and embedded.is_running(data_dir)


def test_writes_are_synced_to_disk_unless_somebody_asks_otherwise(data_dir: Path) -> None:
    server = embedded.start(data_dir)

    assert ask(server.url, "SHOW fsync") == "on"


def test_no_setting_opens_a_network_port(data_dir: Path) -> None:
    server = embedded.start(data_dir, settings=FAST | {"listen_addresses": "127.0.0.1", "port": "54399"})

    assert ask(server.url, "SHOW listen_addresses") == ""
    assert psutil.Process(server.pid).net_connections(kind="inet") == []


def test_the_callers_postgres_variables_do_not_steer_the_server(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "5999")
    monkeypatch.setenv("PGDATA", "/nonexistent")
    monkeypatch.setenv("PGUSER", "somebody")

    server = embedded.start(data_dir, settings=FAST)

    assert ask(server.url, "SELECT current_user || current_setting('port')") == "wakeboard5432"


@pytest.mark.parametrize("name", ["""o'd "x" $HOME `id` é%41""", "a, b"])
def test_a_folder_name_with_spaces_quotes_or_a_comma_is_an_ordinary_name(folder: Path, name: str) -> None:
    server = embedded.start(folder / name, wait_seconds=START_SECONDS, settings=FAST)

    assert ask(server.url, "SELECT 1") == 1


def test_the_programs_of_the_server_are_at_hand(data_dir: Path) -> None:
    said = subprocess.run([embedded.binary("pg_dump", data_dir), "--version"], capture_output=True, text=True)

    assert " 18." in said.stdout
    with pytest.raises(EmbeddedError, match=r"no program 'mysql'.*psql"):
        embedded.binary("mysql", data_dir)


def test_a_log_that_is_a_week_old_goes_at_the_next_start(data_dir: Path) -> None:
    server = embedded.start(data_dir, settings=FAST)
    assert ask(server.url, "SHOW log_truncate_on_rotation") == "on"
    embedded.stop(data_dir)
    old = data_dir / "postgres/data/log/postgres-Old.log"
    old.write_text("x")
    os.utime(old, (0, time.time() - 7 * 86_400))

    embedded.start(data_dir, settings=FAST)

    assert not old.exists()


def test_data_of_another_postgres_version_is_refused(data_dir: Path) -> None:
    embedded.start(data_dir, settings=FAST)
    embedded.stop(data_dir)
    (data_dir / "postgres/data/PG_VERSION").write_text("16\n")

    with pytest.raises(EmbeddedError, match=r"made by PostgreSQL 16.*brings PostgreSQL 18"):
        embedded.start(data_dir, settings=FAST)


def test_a_server_that_cannot_start_says_why(data_dir: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"did not start:.*no_such_setting"):
        embedded.start(data_dir, settings={"no_such_setting": "1"})
    with pytest.raises(EmbeddedError, match=r"did not start:.*max_connections"):
        embedded.start(data_dir, settings={"max_connections": "many"})


def test_windows_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    with pytest.raises(ImportError, match="not on Windows"):
        importlib.reload(embedded)


# --- the starter goes, the server stays


@pytest.mark.parametrize("end", ["exit", "SIGTERM", "SIGINT to the group", "SIGKILL to the group"])
def test_the_server_survives_the_process_that_started_it(data_dir: Path, end: str) -> None:
    starter = launch(data_dir, START + "print('ready', flush=True); input()")
    assert starter.stdout and starter.stdout.readline() == "ready\n"

    with psycopg.connect(embedded.url(data_dir)) as session:
        if end == "exit":
            starter.communicate("\n")
        elif end == "SIGTERM":
            starter.terminate()
        else:
            os.killpg(starter.pid, signal.SIGINT if "INT" in end else signal.SIGKILL)
        starter.communicate()
        assert session.execute("SELECT 1").fetchone() == (1,)

    assert embedded.stop(data_dir) == "The embedded database was stopped."
    assert not embedded.is_running(data_dir)


def test_a_started_server_is_no_child_of_its_starter(data_dir: Path) -> None:
    server = embedded.start(data_dir, settings=FAST)

    assert psutil.Process(server.pid) not in psutil.Process().children(recursive=True)
    assert os.getsid(server.pid) != os.getsid(0)


def test_five_starters_at_once_make_one_cluster(data_dir: Path) -> None:
    code = START + "import json; print(json.dumps([s.pid, s.started_here]))"
    starters = [launch(data_dir, code) for _ in range(5)]
    answers = [json.loads(starter.communicate(timeout=60)[0]) for starter in starters]

    assert len({pid for pid, _ in answers}) == 1
    assert sorted(here for _, here in answers) == [False] * 4 + [True]


# --- stopping


def test_a_stop_leaves_a_server_that_others_use_and_counts_them(data_dir: Path) -> None:
    server = embedded.start(data_dir, settings=FAST)

    with psycopg.connect(server.url), psycopg.connect(server.url):
        assert embedded.stop(data_dir).endswith("left running because 2 other sessions are connected.")
        assert ask(server.url, "SELECT 1") == 1

    assert embedded.stop(data_dir) == "The embedded database was stopped."
    assert not lives(server.pid)
    assert embedded.stop(data_dir) == "The embedded database was not running."


def test_nobody_stops_the_server_between_another_ones_start_and_its_first_connection(data_dir: Path) -> None:
    embedded.start(data_dir, settings=FAST)
    other = launch(data_dir, START + "print('started', flush=True); input()")
    assert other.stdout and other.stdout.readline() == "started\n"

    assert embedded.stop(data_dir).endswith("left running because another Wakeboard process uses it.")

    other.kill()
    other.communicate()
    assert embedded.stop(data_dir) == "The embedded database was stopped."


def test_a_stop_on_purpose_ends_the_sessions_of_others(data_dir: Path) -> None:
    server = embedded.start(data_dir, settings=FAST)
    with psycopg.connect(server.url, autocommit=True) as session:
        assert embedded.stop(data_dir, only_if_unused=False) == "The embedded database was stopped."
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")


def test_a_server_too_full_to_count_its_sessions_is_left_running(data_dir: Path) -> None:
    server = embedded.start(data_dir, settings=FAST | {"max_connections": "5"})
    superuser = embedded.url(data_dir, user="postgres")
    sessions = [psycopg.connect(superuser) for _ in range(5)]

    assert "left running because its sessions could not be counted" in embedded.stop(data_dir)

    for session in sessions:
        session.close()
    assert lives(server.pid)


def test_a_server_that_never_was_is_not_running(data_dir: Path) -> None:
    assert embedded.stop(data_dir) == "The embedded database was not running."
    assert not embedded.is_running(data_dir)
    assert not data_dir.exists()


# --- dirty starts


def lose_power(data_dir: Path) -> None:
    """Leave a cluster as a power cut does, with one committed row in it."""
    server = embedded.start(data_dir, settings=FAST)
    with psycopg.connect(server.url) as session:
        session.execute("CREATE TABLE kept AS SELECT 7 AS n")
    kill_all(server.pid)


def assert_starts_whole(data_dir: Path) -> None:
    begun = time.monotonic()
    server = embedded.start(data_dir, settings=FAST)
    assert time.monotonic() - begun < START_SECONDS
    assert ask(server.url, "SELECT n FROM kept") == 7


def test_a_crash_of_every_server_process_loses_no_committed_row(data_dir: Path) -> None:
    lose_power(data_dir)

    assert_starts_whole(data_dir)


def test_a_stale_process_id_that_a_stranger_has_now_does_not_stop_the_start(data_dir: Path) -> None:
    lose_power(data_dir)
    stranger = foreign_process(data_dir)
    try:
        pid_file = data_dir / "postgres/data/postmaster.pid"
        lines = pid_file.read_text().split("\n")
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]))
        lock = data_dir / "postgres/socket/.s.PGSQL.5432.lock"
        lock.write_text("\n".join([str(stranger.pid), *lock.read_text().split("\n")[1:]]))

        assert_starts_whole(data_dir)
        assert embedded.stop(data_dir) == "The embedded database was stopped."
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("torn", ["", "12", "not a number\n\0\0\0", "-1\n/nowhere\n"])
def test_a_torn_process_id_file_does_not_stop_the_start(data_dir: Path, torn: str) -> None:
    lose_power(data_dir)
    (data_dir / "postgres/data/postmaster.pid").write_text(torn)
    (data_dir / "postgres/socket/.s.PGSQL.5432.lock").write_text(torn)

    assert_starts_whole(data_dir)


def test_leftover_sockets_and_torn_files_of_ours_do_not_stop_the_start(data_dir: Path) -> None:
    lose_power(data_dir)
    for name in ["postgres/start.lock", "postgres/server.lock", "postgres/use.lock", "postgres/startup.log"]:
        (data_dir / name).write_text("{torn")
    for name in ["pg_hba.conf", "pg_ident.conf", "pg_hba.conf.new"]:
        (data_dir / name).write_text("local all")
    assert (data_dir / "postgres/socket/.s.PGSQL.5432").is_socket()

    assert_starts_whole(data_dir)


def test_an_interrupted_first_start_is_begun_again(data_dir: Path) -> None:
    embedded.start(data_dir, settings=FAST)
    embedded.stop(data_dir)
    (data_dir / "postgres/data").rename(data_dir / "postgres/data.new")
    (data_dir / "postgres/data.new/PG_VERSION").unlink()

    assert embedded.start(data_dir, settings=FAST).started_here
    assert not (data_dir / "postgres/data.new").exists()


def test_a_start_waits_for_the_children_of_a_killed_postmaster(data_dir: Path) -> None:
    server = embedded.start(data_dir, settings=FAST)
    session = psycopg.connect(server.url)
    frozen = session.info.backend_pid
    os.kill(frozen, signal.SIGSTOP)
    os.kill(server.pid, signal.SIGKILL)
    told: list[str] = []
    try:
        with pytest.raises(EmbeddedError, match="not ready yet"):
            embedded.start(data_dir, wait_seconds=0.5, progress=told.append, settings=FAST)
        assert "waiting for the previous server to end" in told
    finally:
        os.kill(frozen, signal.SIGCONT)

    assert embedded.start(data_dir, settings=FAST).started_here
    session.close()


def start_aside(data_dir: Path, told: list[str], **options: object) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []

    def begin() -> None:
        try:
            found.append(embedded.start(data_dir, progress=told.append, **options))  # type: ignore[arg-type]
        except EmbeddedError as failed:
            found.append(failed)

    thread = threading.Thread(target=begin)
    thread.start()
    return thread, found


@pytest.mark.slow
def test_a_recovery_of_more_than_ten_seconds_is_waited_for_and_told(data_dir: Path, folder: Path) -> None:
    gate = hold_recovery(data_dir, folder)
    told: list[str] = []
    begun = time.monotonic()
    thread, found = start_aside(data_dir, told, settings=held_by(gate))
    eventually(lambda: time.monotonic() - begun > 11, seconds=12)
    assert thread.is_alive() and not found

    gate.touch()
    thread.join(timeout=30)

    assert isinstance(found[0], embedded.Server) and found[0].started_here
    assert any(sentence.startswith("the database is recovering (5 s)") for sentence in told), told


def test_a_start_that_gives_up_leaves_the_recovery_going_for_the_next(data_dir: Path, folder: Path) -> None:
    gate = hold_recovery(data_dir, folder)
    with pytest.raises(EmbeddedError, match=r"not ready yet.*try again later"):
        embedded.start(data_dir, wait_seconds=1.5, settings=held_by(gate))
    thread, found = start_aside(data_dir, [])
    gate.touch()
    thread.join(timeout=30)

    assert isinstance(found[0], embedded.Server) and not found[0].started_here


def hold_recovery(data_dir: Path, folder: Path) -> Path:
    """Make the next recovery wait until the returned file exists."""
    embedded.start(data_dir, settings=FAST)
    embedded.stop(data_dir)
    request = data_dir / "postgres/data/recovery.signal"
    request.touch()
    os.chown(request, server_user(data_dir), -1)
    return folder / "gate"


def held_by(gate: Path) -> dict[str, str]:
    """Settings under which a recovery waits for the file ``gate``."""
    wait = f"until test -e {gate}; do sleep 0.1; done; false"
    return FAST | {"restore_command": wait, "hot_standby": "off"}


def test_a_starter_waits_only_so_long_for_another(data_dir: Path) -> None:
    embedded.start(data_dir, settings=FAST)
    embedded.stop(data_dir)
    with (data_dir / "postgres/start.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedError, match="Another process has been starting or stopping"):
            embedded.start(data_dir, wait_seconds=0.3, settings=FAST)


# --- other OS users


def as_nobody(data_dir: Path, code: str) -> str:
    return run(data_dir, BECOME_NOBODY + code)


CONNECT = """
try:
    psycopg.connect(URL)
    print("connected")
except psycopg.OperationalError as refused:
    print("refused", refused)
"""


@only_root
def test_another_os_user_cannot_reach_the_socket(data_dir: Path) -> None:
    for user in ["wakeboard", "postgres"]:
        url = embedded.start(data_dir, settings=FAST).url.replace("wakeboard@", f"{user}@")
        assert as_nobody(data_dir, f"URL = {url!r}" + CONNECT).startswith("refused")


@only_root
def test_another_os_user_is_refused_even_with_the_sockets_folder_open(data_dir: Path) -> None:
    server = embedded.start(data_dir, settings=FAST)
    for path in [data_dir / "postgres", data_dir / "postgres/socket"]:
        path.chmod(0o711)
    (data_dir / "postgres/socket/.s.PGSQL.5432").chmod(0o777)

    for user in ["wakeboard", "postgres", "nobody"]:
        url = server.url.replace("wakeboard@", f"{user}@")
        assert "Peer authentication failed" in as_nobody(data_dir, f"URL = {url!r}" + CONNECT)


@only_root
def test_another_os_user_gets_a_sentence_that_names_the_owner(data_dir: Path) -> None:
    embedded.start(data_dir, settings=FAST)
    code = "\nfor f in (embedded.start, embedded.stop, embedded.is_running, embedded.url):\n"
    code += "    try: print(f(D))\n    except embedded.EmbeddedError as said: print(said)"

    assert as_nobody(data_dir, code).count("belongs to the OS user wakeboard") == 4


@only_root
def test_the_client_refuses_a_server_of_another_os_user(data_dir: Path) -> None:
    server = embedded.start(data_dir, settings=FAST)

    with pytest.raises(psycopg.OperationalError, match="requirepeer"):
        psycopg.connect(server.url.replace("requirepeer=wakeboard", "requirepeer=nobody"))


@only_root
def test_root_runs_the_server_as_a_system_user_and_widens_no_folder(data_dir: Path) -> None:
    before = modes(data_dir.parent), modes(Path(sys.prefix))
    server = embedded.start(data_dir, settings=FAST)

    assert psutil.Process(server.pid).username() == "wakeboard"
    assert psutil.Process(server.pid).gids().real == pwd.getpwnam("wakeboard").pw_gid
    assert modes(data_dir.parent) == before[0] and modes(Path(sys.prefix)) == before[1]
    assert stat.S_IMODE((data_dir / "postgres/socket").stat().st_mode) == 0o700
    assert stat.S_IMODE((data_dir / "postgres/data").stat().st_mode) == 0o700
    assert data_dir.stat().st_uid == 0


@only_root
def test_a_closed_parent_stays_closed_and_is_named(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(EmbeddedError, match=rf"may not enter {closed}:.*WAKEBOARD_DATA_DIR"):
        embedded.start(closed / "d", settings=FAST)

    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def long_folder(folder: Path) -> Path:
    return folder / ("long" * 30) / "d"


def test_a_path_too_long_for_a_socket_gets_a_private_folder_in_tmp(folder: Path) -> None:
    server = embedded.start(long_folder(folder), settings=FAST)
    place = socket_folder(long_folder(folder))

    assert ask(server.url, "SELECT 1") == 1
    assert place.parent == Path("/tmp") and stat.S_IMODE(place.stat().st_mode) == 0o700
    assert place.stat().st_uid == server_user(long_folder(folder))
    if AS_ROOT:
        assert as_nobody(folder, f"URL = {server.url!r}" + CONNECT).startswith("refused")


@only_root
@pytest.mark.parametrize("trap", ["folder of another", "link"])
def test_a_socket_folder_that_somebody_else_made_is_refused(folder: Path, trap: str) -> None:
    embedded.start(long_folder(folder), settings=FAST)
    place = socket_folder(long_folder(folder))
    embedded.stop(long_folder(folder))
    shutil.rmtree(place)
    if trap == "link":
        place.symlink_to(folder)
    else:
        place.mkdir(mode=0o777)
        os.chown(place, pwd.getpwnam("nobody").pw_uid, -1)
    try:
        with pytest.raises(EmbeddedError, match=r"belongs to the OS user nobody|is not a folder"):
            embedded.start(long_folder(folder), settings=FAST)
    finally:
        place.unlink() if trap == "link" else place.rmdir()


@only_root
def test_a_lock_file_that_another_user_holds_in_tmp_delays_nothing(data_dir: Path) -> None:
    shared = Path("/tmp/.lockfile")
    was_there = shared.exists()
    code = "\nimport fcntl\nf = open('/tmp/.lockfile', 'a'); fcntl.flock(f, fcntl.LOCK_EX)\n"
    other = launch(data_dir, BECOME_NOBODY + code + "print('held', flush=True); input()")
    try:
        assert other.stdout and other.stdout.readline() == "held\n"
        begun = time.monotonic()
        assert embedded.start(data_dir, settings=FAST).started_here
        assert time.monotonic() - begun < START_SECONDS
    finally:
        other.kill()
        other.communicate()
        if not was_there:
            shared.unlink(missing_ok=True)


@only_root
def test_roots_copy_of_the_programs_is_for_everyone_to_run_and_for_root_to_change(data_dir: Path) -> None:
    copy = embedded.binary("postgres", data_dir)

    assert copy.stat().st_uid == 0 and stat.S_IMODE(copy.stat().st_mode) == 0o755
    said = subprocess.run([copy, "--version"], user="nobody", cwd="/", capture_output=True, text=True)
    assert " 18." in said.stdout


@pytest.fixture
def nobodys_dir(folder: Path) -> Path:
    """A folder of the ordinary user ``nobody``."""
    nobody = pwd.getpwnam("nobody")
    blocked = first_blocked(Path(sys.prefix), Identity("nobody", nobody.pw_uid, nobody.pw_gid))
    if blocked:
        pytest.skip(f"nobody may not enter {blocked}, where the PostgreSQL binaries are")
    home = folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    return home / "d"


@only_root
def test_an_ordinary_user_runs_everything_as_that_user(nobodys_dir: Path) -> None:
    said = as_nobody(nobodys_dir, START + "print(s.pid, psycopg.connect(s.url).info.user, embedded.stop(D))")
    pid, user, rest = said.split(" ", 2)

    assert user == "wakeboard" and rest == "The embedded database was stopped."
    assert not lives(int(pid))
    assert stat.S_IMODE(nobodys_dir.stat().st_mode) == 0o700
    everything = [nobodys_dir, *nobodys_dir.rglob("*")]
    assert {path.lstat().st_uid for path in everything} == {pwd.getpwnam("nobody").pw_uid}


@only_root
def test_root_uses_and_stops_the_server_of_an_ordinary_user_and_leaves_it_usable(nobodys_dir: Path) -> None:
    pid = int(as_nobody(nobodys_dir, START + "print(s.pid)"))

    attached = embedded.start(nobodys_dir)
    assert attached.pid == pid and ask(attached.url, "SELECT 1") == 1
    assert embedded.stop(nobodys_dir) == "The embedded database was stopped."
    again = embedded.start(nobodys_dir, settings=FAST)
    assert psutil.Process(again.pid).username() == "nobody"
    embedded.stop(nobodys_dir)

    assert as_nobody(nobodys_dir, START + "print(s.started_here, embedded.stop(D))").startswith("True")
