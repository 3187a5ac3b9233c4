"""The embedded PostgreSQL on real processes: how it starts, stops, refuses and explains itself.

What happens to it when something dies or somebody else knocks are rows F68 to F71 of the fault table.
"""

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
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support.postgres.embedded import (
    AS_ROOT,
    FAST,
    START,
    START_SECONDS,
    as_nobody,
    ask,
    kill_all,
    launch,
    lives,
    long_folder,
    run,
    server_user,
    short_folder,
    socket_folder,
    tear_pid_files,
)
from tests.support.processes import wait_until
from wakeboard.database import embedded
from wakeboard.database.embedded import EmbeddedError
from wakeboard.database.embedded.cluster_owner import ClusterOwner, first_unreachable

only_root = pytest.mark.skipif(not AS_ROOT, reason="needs root to become another OS user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path that every OS user may pass through but not list."""
    with short_folder() as made:
        yield made


@pytest.fixture
def data_dir(folder: Path) -> Path:
    return folder / "d"


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


def test_a_started_server_is_no_child_of_its_starter(data_dir: Path) -> None:
    told = run(
        data_dir,
        START + "import os, psutil\n"
        "mine = [child.pid for child in psutil.Process().children(recursive=True)]\n"
        "print(s.pid in mine, os.getsid(s.pid) == os.getsid(0))",
    )

    assert told == "False False"


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
    wait_until(lambda: not lives(server.pid), 5, "its lock goes a moment before the process")
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


@pytest.mark.parametrize("torn", ["", "12", "not a number\n\0\0\0", "-1\n/nowhere\n"])
def test_a_torn_process_id_file_does_not_stop_the_start(data_dir: Path, torn: str) -> None:
    lose_power(data_dir)
    tear_pid_files(data_dir, torn)

    assert_starts_whole(data_dir)


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
    wait_until(lambda: time.monotonic() - begun > 11, seconds=12)
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
def test_a_closed_parent_stays_closed_and_is_named(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(EmbeddedError, match=rf"may not enter {closed}:.*WAKEBOARD_DATA_DIR"):
        embedded.start(closed / "d", settings=FAST)

    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


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
def test_roots_copy_of_the_programs_is_for_everyone_to_run_and_for_root_to_change(data_dir: Path) -> None:
    copy = embedded.binary("postgres", data_dir)

    assert copy.stat().st_uid == 0 and stat.S_IMODE(copy.stat().st_mode) == 0o755
    said = subprocess.run([copy, "--version"], user="nobody", cwd="/", capture_output=True, text=True)
    assert " 18." in said.stdout


@pytest.fixture
def nobodys_dir(folder: Path) -> Path:
    """A folder of the ordinary user ``nobody``."""
    nobody = pwd.getpwnam("nobody")
    blocked = first_unreachable(Path(sys.prefix), ClusterOwner("nobody", nobody.pw_uid, nobody.pw_gid))
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
    wait_until(lambda: not lives(int(pid)), 5, "its lock goes a moment before the process")
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
