"""Faults of the embedded database: dead owners, dirty starts, long recoveries, strangers, reboots."""

from __future__ import annotations

import os
import pwd
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil
import psycopg
import pytest

from tests.support.faults.deployment import LEASE_SECONDS, SETTINGS, House, a_house
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.truth_file import PLACE, now
from tests.support.postgres.embedded import (
    AS_ROOT,
    BECOME_NOBODY,
    FAST,
    START,
    START_SECONDS,
    as_nobody,
    ask,
    interrupt_initdb,
    kill_all,
    launch,
    lives,
    long_folder,
    modes,
    pretend_pid,
    run,
    server_user,
    short_folder,
    socket_folder,
    stranger_process,
    tear_own_files,
    tear_pid_files,
)
from tests.support.processes import Wakeboard, surroundings, wait_until, wakeboard
from wakeboard.database import db, embedded, migrations
from wakeboard.database.embedded.cluster_owner import ClusterOwner, first_unreachable

Measured = Callable[[str], None]
IS_UP = "Wakeboard is at"
RECOVERY_SECONDS = 300


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path; the servers below it end with the test."""
    with short_folder() as made:
        yield made


def on(data_dir: Path) -> dict[str, str]:
    """Return the settings with which a command uses the embedded server of ``data_dir``."""
    return {"DATA_DIR": str(data_dir), "DATABASE_URL": ""}


def server_log(data_dir: Path) -> str:
    """Return what the server of ``data_dir`` has logged."""
    logs = (data_dir / "postgres/data/log").glob("postgres-*")
    return "".join(log.read_text(errors="replace") for log in logs)


def cut_sessions(data_dir: Path) -> int:
    """Return how many sessions the server has ended because somebody told it to end."""
    return server_log(data_dir).count("terminating connection due to administrator command")


# The owner goes


@dataclass(frozen=True, slots=True)
class Owner:
    """A command that makes and starts the server, what it prints when it has, and the signal that ends it."""

    words: tuple[str, ...]
    ready: str
    end: signal.Signals | None = None
    whole_group: bool = False


OWNERS = (
    Owner(("up", "--port", "0"), IS_UP, signal.SIGTERM),
    Owner(("up", "--port", "0"), IS_UP, signal.SIGKILL),
    Owner(("up", "--port", "0"), IS_UP, signal.SIGINT, whole_group=True),
    Owner(("worker",), "Worker started", signal.SIGKILL, whole_group=True),
    Owner(("db", "check"), "The schema"),
)


@contextmanager
def owning(owner: Owner, folder: Path) -> Iterator[Wakeboard]:
    """Run the owner of a new server in ``folder/d``; its handlers tell the truth file of the house there."""
    given = {f"WAKEBOARD_{name}": value for name, value in (SETTINGS | on(folder / "d")).items()}
    with wakeboard(*owner.words, environment=given | {PLACE: str(folder / "truth")}) as started:
        started.wait_for(owner.ready, 60)
        yield started


def end(owner: Owner, process: Wakeboard) -> None:
    """End the owner in its way, and wait until nothing of it is left but the server."""
    family = process.family()
    if owner.end and owner.whole_group:
        os.killpg(process.pid, owner.end)
    elif owner.end:
        process.process.send_signal(owner.end)
    process.wait(40)
    wait_until(lambda: not [each for each in family if lives(each.pid)], 40, "the owner's family has ended")


@fault(
    "F68",
    injected="who started the embedded database ends, by exit, SIGTERM, SIGINT or kill -9, while others work",
    expected="the server stays; no session is cut unless somebody stops it on purpose",
)
def test_a_server_outlives_its_owner_while_others_work(
    folder: Path, scale: Scale, measured: Measured
) -> None:
    owners = scale.times(OWNERS[:2], OWNERS)
    done = sum(survive(owner, folder / str(number)) for number, owner in enumerate(owners))
    measured(f"{len(owners)} owners ended, 0 sessions cut, {done} runs done, each server the same process")


def survive(owner: Owner, folder: Path) -> int:
    """Let a worker work through the end of the owner; return how many runs it did."""
    folder.mkdir(mode=0o711)
    data_dir = folder / "d"
    with owning(owner, folder) as process:
        pid = embedded.start(data_dir).pid
        with a_house(embedded.url(data_dir), folder) as house:
            house.worker()
            ids = house.enqueue_many("effect", 60, {"seconds": 0.05})
            house.wait_until_started(ids[:5])
            end(owner, process)
            house.enqueue_many("effect", 20)
            house.settle(60)
            told = f"{owner}:\n{process.output}\n{server_log(data_dir)}"
            assert cut_sessions(data_dir) == 0, told
            assert embedded.start(data_dir).pid == pid, told
            if owner.end in (signal.SIGTERM, signal.SIGINT):
                assert "was left running because" in process.output, told
            counts = house.counts()
            house.check()
            embedded.stop(data_dir, only_if_unused=False)
            assert cut_sessions(data_dir) > 0, "a stop on purpose cuts sessions, and the log tells it"
    return counts["succeeded"]


# Dirty starts


@contextmanager
def writing(url: str) -> Iterator[list[int]]:
    """Insert numbers, one commit each, until the server goes; the list holds those that were acknowledged."""
    acknowledged: list[int] = []
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("CREATE TABLE IF NOT EXISTS kept (n int GENERATED ALWAYS AS IDENTITY)")

        def write() -> None:
            with suppress(psycopg.Error):
                while row := session.execute("INSERT INTO kept DEFAULT VALUES RETURNING n").fetchone():
                    acknowledged.append(row[0])

        thread = threading.Thread(target=write)
        thread.start()
        yield acknowledged
        thread.join(30)
        assert not thread.is_alive(), "the writer noticed that the server went"


def crash_while_writing(data_dir: Path) -> list[int]:
    """Kill every process of the server under a writer; return what was acknowledged."""
    server = embedded.start(data_dir, settings=FAST)
    with writing(server.url) as acknowledged:
        wait_until(lambda: len(acknowledged) >= 20, 20, "twenty commits")
        kill_all(server.pid)
    return acknowledged


def start_in_time(data_dir: Path, acknowledged: Sequence[int]) -> float:
    """Start, in time and with every acknowledged row; return the seconds it took."""
    began = now()
    server = embedded.start(data_dir, wait_seconds=START_SECONDS, settings=FAST)
    took = now() - began
    found = ask(server.url, f"SELECT count(*) FROM kept WHERE n = ANY('{{{str(list(acknowledged))[1:-1]}}}')")
    assert found == len(acknowledged)
    assert ask(server.url, "SELECT 1") == 1
    return took


def without_pid_files(data_dir: Path) -> None:
    """Do what people do to a server that seems to run: remove its file, and leave the socket."""
    (data_dir / "postgres/data/postmaster.pid").unlink()
    assert (data_dir / "postgres/socket/.s.PGSQL.5432").is_socket()


def torn(data_dir: Path) -> None:
    """Tear every small file that tells who runs."""
    tear_pid_files(data_dir, "")
    tear_own_files(data_dir)


@fault(
    "F69",
    injected="kill -9 of all under writers; then nothing, a stranger with the old number, torn files, a left "
    "socket; a server that runs already; an interrupted first start",
    expected="each start within 30 s, every acknowledged row there, the stranger untouched",
)
def test_every_dirty_start_starts(folder: Path, scale: Scale, measured: Measured) -> None:
    data_dir, rounds = folder / "d", scale.times(1, 2)
    embedded.start(data_dir, settings=FAST)
    times: list[float] = []
    rows = 0
    with a_process_of_the_servers_user(data_dir) as stranger:
        for _ in range(rounds):
            for dirt in (lambda _: None, lambda d: pretend_pid(d, stranger.pid), torn, without_pid_files):
                acknowledged = crash_while_writing(data_dir)
                dirt(data_dir)
                times.append(start_in_time(data_dir, acknowledged))
                rows += len(acknowledged)
            times += [start_again(data_dir), start_after_interrupted_initdb(folder / f"e{len(times)}")]
        assert stranger.poll() is None
    measured(
        f"{len(times)} of {6 * rounds} starts, {max(times):.1f} s at most; {rows} acknowledged rows, 0 lost; "
        "the stranger lives"
    )
    assert len(times) == 6 * rounds
    assert max(times) <= START_SECONDS


@contextmanager
def a_process_of_the_servers_user(data_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that a dead server's number may be dealt to; every signal would end it."""
    stranger = stranger_process(data_dir)
    try:
        yield stranger
    finally:
        stranger.kill()
        stranger.wait()


def start_again(data_dir: Path) -> float:
    """Start, from another process, a server that runs; return the seconds it took."""
    pid, began = embedded.start(data_dir).pid, now()
    assert run(data_dir, START + "print(s.pid, s.started_here)") == f"{pid} False"
    return now() - began


def start_after_interrupted_initdb(data_dir: Path) -> float:
    """Begin a first start again that was cut off; return the seconds it took."""
    embedded.start(data_dir, settings=FAST)
    embedded.stop(data_dir, only_if_unused=False)
    interrupt_initdb(data_dir)
    began = now()
    server = embedded.start(data_dir, wait_seconds=START_SECONDS, settings=FAST)
    took = now() - began
    assert ask(server.url, "SELECT 1") == 1
    embedded.stop(data_dir, only_if_unused=False)
    return took


# A long recovery

# No checkpoint comes between: the recovery has to read all of it.
ALL_IN_THE_LOG = FAST | {"max_wal_size": "32GB", "checkpoint_timeout": "1d", "autovacuum": "off"}
FILL = """
INSERT INTO wakeboard.job_runs (job_type, payload)
SELECT 'mail', jsonb_build_object('n', n, 'text', repeat(md5(n::text), 50))
FROM generate_series(1, 20000) AS n
"""
BYTES = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{}')::bigint"


def fill_log(url: str, megabytes: int) -> int:
    """Enqueue runs until they have written so much of the server's log; return how many."""
    with db.connect(url, name="wakeboard test") as session:
        (first,) = session.execute("SELECT pg_current_wal_insert_lsn()").fetchone() or (None,)
        runs = 0
        while (session.execute(BYTES.format(first).encode()).fetchone() or (0,))[0] < megabytes * 2**20:
            runs += session.execute(FILL.encode()).rowcount
    return runs


@fault(
    "F70",
    injected="kill -9 of the server, much of its log not in its tables yet; two commands start it",
    expected="both wait, say that it recovers, and go on within 300 s; no run lost",
)
def test_a_long_recovery_is_waited_for(folder: Path, scale: Scale, measured: Measured) -> None:
    data_dir, megabytes = folder / "d", scale.times(64, 1024)
    server = embedded.start(data_dir, settings=ALL_IN_THE_LOG)
    migrations.migrate(server.url)
    runs = fill_log(server.url, megabytes)
    kill_all(server.pid)
    began = now()
    environment = surroundings(None) | {f"WAKEBOARD_{name}": value for name, value in on(data_dir).items()}
    starters = [
        subprocess.Popen(
            [sys.executable, "-m", "wakeboard", "db", "check"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [starter.communicate(timeout=RECOVERY_SECONDS + 30) for starter in starters]
    took = now() - began
    log = server_log(data_dir)
    redo = log.rpartition("redo done")[2].rpartition("elapsed:")[2].split(" s", 1)[0].strip()
    found = ask(embedded.url(data_dir), "SELECT count(*) FROM wakeboard.job_runs")
    measured(
        f"{megabytes} MB of log; {runs} runs, {runs - int(str(found))} lost; both ready after {took:.1f} s "
        f"(reading the log {redo} s)"
    )
    assert [starter.returncode for starter in starters] == [0, 0], said
    assert took <= RECOVERY_SECONDS
    assert found == runs
    assert "redo done" in log
    if took > 10:
        assert any("the database is recovering" in error for _, error in said), said


# Strangers

KNOCK = """
for url in {urls!r}:
    try:
        psycopg.connect(url, connect_timeout=5).close()
        print("connected")
    except psycopg.OperationalError:
        print("refused")
"""
HOLD = """
import fcntl
held = open('/tmp/.lockfile', 'a')
fcntl.flock(held, fcntl.LOCK_EX)
print('held', flush=True)
input()
"""


@contextmanager
def common_lock_held_by_nobody(data_dir: Path) -> Iterator[None]:
    """Let the OS user ``nobody`` hold a lock on a file of /tmp that everybody on the host shares."""
    shared = Path("/tmp/.lockfile")
    was_there = shared.exists()
    holder = launch(data_dir, BECOME_NOBODY + HOLD)
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.kill()
        holder.communicate()
        if not was_there:
            shared.unlink(missing_ok=True)


def timed_start(data_dir: Path) -> tuple[embedded.Server, float]:
    """Start the server of ``data_dir``; return it and the seconds it took."""
    began = now()
    return embedded.start(data_dir, wait_seconds=START_SECONDS, settings=FAST), now() - began


def open_doors(data_dir: Path) -> None:
    """Give everybody the way to the socket, as a careless chmod does."""
    place = socket_folder(data_dir)
    for path in (data_dir / "postgres", place):
        path.chmod(0o711)
    (place / ".s.PGSQL.5432").chmod(0o777)


def assert_private(data_dir: Path, user: int) -> None:
    """Check that socket and data are for the server's user alone."""
    for path in (socket_folder(data_dir), data_dir / "postgres/data"):
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) == (0o700, user)


@fault(
    "F71",
    injected="started by root, by nobody, in a path too long for a socket, under a lock held in /tmp",
    expected="no folder's mode widened, nobody connects 0 times, each start within 30 s",
)
def test_strangers_stay_outside(folder: Path, measured: Measured) -> None:
    if not AS_ROOT:
        pytest.skip("needs root to become another OS user")
    way = folder / "closed to others" / "way"
    way.mkdir(parents=True)
    way.parent.chmod(0o711)
    way.chmod(0o711)
    places = [way / "d", long_folder(folder)]
    before = modes(way) | modes(Path(sys.prefix))
    with common_lock_held_by_nobody(way / "d"):
        started = [timed_start(place) for place in places]
    urls = [
        server.url.replace("wakeboard@", f"{user}@")
        for server, _ in started
        for user in ("wakeboard", "postgres", "nobody")
    ]
    knock = KNOCK.format(urls=urls)
    answers = as_nobody(way / "d", knock).split()
    for place in places:
        assert_private(place, server_user(place))
    for place in places:
        open_doors(place)
    answers += as_nobody(way / "d", knock).split()
    # The same knock by root is let in, but for the user whom no map names: so it could be seen.
    assert run(way / "d", "import psycopg\n" + knock).split().count("connected") == 4
    widened = {path: mode for path, mode in before.items() if stat.S_IMODE(Path(path).stat().st_mode) != mode}
    users = {psutil.Process(server.pid).username() for server, _ in started}
    times = [took for _, took in started]
    words = start_as_nobody(folder / "home")
    measured(
        f"{len(answers)} tries of nobody, {answers.count('connected')} connected; {len(widened)} of "
        f"{len(before)} modes changed; started in {max(times):.1f} s at most; {words}"
    )
    assert answers == ["refused"] * 12
    assert not widened
    assert users == {"wakeboard"}
    assert max(times) <= START_SECONDS


def start_as_nobody(home: Path) -> str:
    """Start a server as the ordinary user ``nobody``; return what came of it in words."""
    nobody = pwd.getpwnam("nobody")
    blocked = first_unreachable(Path(sys.prefix), ClusterOwner("nobody", nobody.pw_uid, nobody.pw_gid))
    if blocked:
        return f"not as nobody, who may not enter {blocked}, where the programs are"
    home.mkdir(mode=0o700)
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    data_dir, before, began = home / "d", modes(home), now()
    code = START + "print(s.url); print(embedded.url(D, user='postgres'))\n"
    urls = as_nobody(data_dir, code + "psycopg.connect(s.url).close()").split("\n")
    took = now() - began
    assert len(urls) == 2
    assert_private(data_dir, nobody.pw_uid)
    assert modes(home) == before
    assert took <= START_SECONDS
    return f"as nobody in {took:.1f} s"


# A reboot


def everything(up: Wakeboard, data_dir: Path) -> list[psutil.Process]:
    """Return every process of the household and of its database server."""
    postmaster = psutil.Process(embedded.start(data_dir).pid)
    return [psutil.Process(up.pid), *up.family(), postmaster, *postmaster.children(recursive=True)]


def cut_power(doomed: Sequence[psutil.Process]) -> None:
    """Kill them all, none of them with time to notice the others' end."""
    for process in doomed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(doomed, timeout=10)


@fault(
    "R1",
    injected="kill -9 of worker, handlers, dashboard and database at once; a stranger gets its number",
    expected="up again by itself, every acknowledged run ends, what was cut off starts once more",
)
def test_after_a_reboot_work_goes_on_where_it_was(
    folder: Path, scale: Scale, chance: Random, measured: Measured
) -> None:
    data_dir, reboots = folder / "d", scale.times(1, 2)
    up_after: list[float] = []
    work_after: list[float] = []
    with a_house(embedded.start(data_dir, settings=FAST).url, folder) as house:
        house.up(**on(data_dir))
        for _ in range(reboots):
            work_and_lose_power(house, data_dir, chance)
            with a_process_of_the_servers_user(data_dir) as stranger:
                pretend_pid(data_dir, stranger.pid)
                began, known = now(), len(house.truth("start"))
                house.up(**on(data_dir))
                up_after.append(now() - began)
                house.connection = db.connect(house.database, name="wakeboard test")
                house.settle(90)
                work_after.append(house.truth("start")[known].at - began)
                assert stranger.poll() is None
        counts, outcomes = house.counts(), house.outcomes()
        measured(
            f"{reboots} reboots: up after {max(up_after):.1f} s, the next handler started after "
            f"{max(work_after):.1f} s at most; {outcomes.get('lost', 0)} runs taken back; {counts}"
        )
        assert outcomes.get("lost", 0) >= 2 * reboots
        assert sum(counts.values()) == len(house.acknowledged)
        assert max(up_after) <= START_SECONDS
        house.check()


def work_and_lose_power(house: House, data_dir: Path, chance: Random) -> None:
    """Give the household work, and kill every process when two slow runs are under way."""
    house.enqueue_many("effect", 60, {"seconds": 0.05})
    house.wait_until_started(house.enqueue_many("slow", 2, {"seconds": LEASE_SECONDS}), 60)
    house.enqueue_many("effect", 20, {"seconds": 0.05})
    doomed = everything(house.processes[-1], data_dir)
    chance.shuffle(doomed)
    cut_power(doomed)
    with pytest.raises(psycopg.Error):
        house.connection.execute("SELECT 1")
    assert not embedded.is_running(data_dir)
