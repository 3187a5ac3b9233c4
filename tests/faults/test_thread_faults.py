"""Faults inside of a process: a thread ends, descriptors run out, privileges are taken away."""

from __future__ import annotations

import http.client
import json
import re
import resource
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.factories import rows
from tests.support.faults.deployment import LEASE_SECONDS, House
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.page_users import ADMIN
from tests.support.faults.thread_orders import Orders
from tests.support.faults.truth_file import now
from tests.support.http_client import JSON, Visitor
from tests.support.postgres.wire_proxy import Middleman, between
from tests.support.processes import Wakeboard, run_wakeboard, wait_until
from wakeboard.accounts.tokens import create_token
from wakeboard.core.states import Role

Measured = Callable[[str], None]
# Every thread of a worker and of a dashboard's process that lives as long as the process does. A new one
# needs a line here, and a ServiceThread, or something else that starts it again.
WORKER_THREADS = ("lease", "heartbeat", "duties", "forward", "log")
WEB_THREADS = ("alerts", "post", "outage", "log")
# Each opens a connection or works on the indexes, and is over.
SHORT_LIVED = re.compile(r"connect (claim|finish)|indexes|deadline")
# gunicorn's executor has as many threads as are needed.
KNOWN_OF_WEB = re.compile(rf"MainThread|{'|'.join(WEB_THREADS)}|ThreadPoolExecutor-\d+_\d+")
LATE_OF_WORKER = {"claim", "renew", "schedule", "reap", "presence"}
ENDED = "The thread '{}' ended by an error and is started again: SystemExit"


@pytest.fixture
def middleman(house: House) -> Iterator[Middleman]:
    """A way to the database by TCP: there psycopg waits for a connection with a descriptor of its own."""
    with between(house.database) as opened:
        yield opened


def statusz(address: str) -> tuple[int, dict[str, Any]]:
    """Return the code and the body of the status page."""
    try:
        with urllib.request.urlopen(f"{address}/statusz", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


def late(address: str) -> set[str]:
    """Return the names of the loops that the status page calls late."""
    return {loop["loop"] for loop in statusz(address)[1].get("loops", ()) if loop["late"]}


def doctor(house: House) -> tuple[int, str]:
    """Return the exit code of ``wakeboard doctor`` and what it says of the loops."""
    said = run_wakeboard("doctor", "--json", database=house.database)
    items = json.loads(said.stdout)["items"]
    return said.returncode, " ".join(item["says"] for item in items if item["check"] == "loops")


def last_error(house: House, loop: str) -> str:
    """Return the last error that any process tells of the loop."""
    return " ".join(row["last_error"] or "" for row in rows(house.connection, "loops", "name = %s", loop))


def runs_work(house: House) -> None:
    """Assert that a run that is enqueued now succeeds."""
    house.wait_until_status([house.enqueue("note")], "succeeded")


@fault(
    "F85",
    injected="SystemExit in each thread of a living worker and of a dashboard's process",
    expected="logged with its trace, told by the loops, started again by itself; the processes stay",
)
def test_a_thread_that_ends_is_told_and_started_again(house: House, scale: Scale, measured: Measured) -> None:
    orders = Orders(house)
    worker = house.worker(environment=orders.environment)
    names = [name for name in orders.names(worker.pid) if not is_brief(name)]
    assert sorted(names) == sorted(("MainThread", *WORKER_THREADS)), "a thread without a line here"
    assert {len(member.threads()) for member in worker.family()} == {1}, "fork server and children have one"
    # What writes the log loses the line at hand, so it comes last.
    for ended in (WORKER_THREADS[:-1], WORKER_THREADS[-1:]):
        orders.end(worker.pid, *ended)
        # What passes on the fork server's lines hears of it with the next one.
        server = psutil.Process(worker.pid).children()[0]
        Path(f"/proc/{server.pid}/fd/2").write_text("a line of the fork server\n")
        for name in ended:
            worker.wait_for(ENDED.format(name))
    wait_until(lambda: "SystemExit" in last_error(house, "renew"), 30, "the lease's row tells it")
    wait_until(lambda: "SystemExit" in last_error(house, "clock"), 30, "the duties' row tells it")
    assert "Traceback" in worker.output
    runs_work(house)
    assert set(WORKER_THREADS) <= set(orders.names(worker.pid))
    told = ends_of_the_web(house, orders, scale)
    measured(f"{len(WORKER_THREADS)} threads of a worker and {told} of a dashboard, all started again")
    house.check()


def ends_of_the_web(house: House, orders: Orders, scale: Scale) -> int:
    """End the threads of a dashboard's process; return how many were started again."""
    web, address = house.web_process(environment=orders.environment)
    watching = "process_id LIKE 'web-%%' AND name = 'alerts'"
    wait_until(lambda: len(rows(house.connection, "loops", watching)) == 2, 30, "both processes watch")
    process = psutil.Process(web.pid).children()[0]

    def names() -> set[str]:
        return set(orders.names(process.pid))

    def is_asked() -> bool:
        ask(address)
        return any(name.startswith("ThreadPoolExecutor") for name in names())

    wait_until(is_asked, 30, "it makes pages")
    strangers: list[str] = []

    def all_are_known() -> bool:
        strangers[:] = [name for name in names() if not (KNOWN_OF_WEB.fullmatch(name) or is_brief(name))]
        return not strangers

    with suppress(AssertionError):
        wait_until(all_are_known, 30)
    assert not strangers, "a thread without a line here"
    # One that waits hears of it when it wakes: the rules are looked at four times a minute.
    ended = scale.times(("post", "outage"), ("alerts", "post", "outage"))
    orders.end(process.pid, *ended)
    for name in ended:
        web.wait_for(ENDED.format(name), 40)
    # What writes the log loses the line at hand, so it comes last.
    orders.end(process.pid, "log")
    wait_until(lambda: [act(house, address), ENDED.format("log") in web.output][1], 40, "log is told")
    wait_until(lambda: names() >= set(WEB_THREADS), 10, "all live again")
    if scale.full:
        wait_until(lambda: "SystemExit" in last_error(house, "post"), 60, "the rows tell it")
    assert process.is_running()
    return len(ended) + 1


def act(house: House, address: str) -> None:
    """Let some process log that a person cancelled a run."""
    token = create_token(house.connection, ADMIN, secrets.token_hex(4), Role.OPERATOR)
    run_id = house.enqueue("note", run_at="2100-01-01")
    with suppress(OSError, http.client.HTTPException):
        Visitor(address, token).post(f"/runs/{run_id}/cancel", headers=JSON)


def is_brief(name: str) -> bool:
    """Whether the thread opens a connection, or works on the indexes, and is over."""
    return bool(SHORT_LIVED.fullmatch(name))


def ask(address: str) -> None:
    """Let a thread of some process answer, or not."""
    with asked(address):
        pass


@contextmanager
def asked(address: str) -> Iterator[bool]:
    """Ask something on a connection that stays open while the block lasts; give whether it was answered."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=0.5)
    with closing(connection):
        try:
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            is_answered = True
        except OSError:
            is_answered = False
        yield is_answered


@fault(
    "F85",
    injected="the renewing of leases raises what nobody expects, at each step",
    expected="the worker ends with code 1 within two leases, and another one takes its runs over",
)
def test_a_worker_whose_leases_nobody_renews_ends(house: House, measured: Measured) -> None:
    orders = Orders(house)
    gate = house.folder / "gate"
    worker = house.worker(environment=orders.environment)
    held = house.enqueue("gated", {"gate": str(gate)})
    house.wait_until_started([held])
    orders.break_down(worker.pid, "wakeboard.runtime.duties.lease:LeaseKeeper.step")
    broken_at = now()
    code, took = worker.wait(30), now() - broken_at
    assert worker.output.count("Traceback") == 1, worker.output
    assert ENDED.format("lease").replace("SystemExit", "TypeError") in worker.output
    assert "A thread that this worker cannot do without does not stay alive" in worker.output
    house.processes.remove(worker)
    house.worker()
    gate.touch()
    house.settle(30)
    measured(f"ended with code {code} after {took:.1f} s, lease {LEASE_SECONDS:g} s; {house.outcomes()}")
    assert code == 1
    assert took <= 2 * LEASE_SECONDS + 5
    # The first attempt was stopped before its lease ended, and nothing was claimed without a lease's keeper.
    assert house.outcomes() in ({"lost": 1, "succeeded": 1}, {"failed": 1, "succeeded": 1})
    house.check()


def cut_sessions(house: House, *names: str) -> None:
    """Cut the sessions with these names, and wait until they are gone."""
    where = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = ANY(%s)"
    house.connection.execute(f"SELECT pg_terminate_backend(pid, 5000) {where}".encode(), (list(names),))


@contextmanager
def few_descriptors(pid: int) -> Iterator[Callable[[int], None]]:
    """Let the process open nothing more while the block lasts; what is given may let it open a few."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    def leave(count: int) -> None:
        used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        free = [number for number in range(3, 1000) if number not in used]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[count], before[1]))

    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield leave
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@fault(
    "F86",
    injected="no free descriptor in a living worker, and all of its sessions cut",
    expected="logged once with its trace, late on the status page and for doctor; comes back by itself",
)
def test_a_worker_without_a_free_descriptor_is_late_and_comes_back(
    house: House, middleman: Middleman, measured: Measured
) -> None:
    gate = house.folder / "gate"
    worker = house.worker(database=middleman.url, LEASE_SECONDS=60)
    address = house.web()
    held = house.enqueue("gated", {"gate": str(gate)})
    house.wait_until_started([held])
    wait_until(lambda: statusz(address)[0] == 200, 30, "all duties are on time")
    with few_descriptors(worker.pid) as leave:
        cut_sessions(
            house, *(f"wakeboard {name}" for name in ("claim", "finish", "heartbeat", "duties", "lease"))
        )
        waiting = house.enqueue("note")
        wait_until(lambda: late(address) >= LATE_OF_WORKER, 60, "the status page says who is late")
        assert statusz(address)[0] == 503
        code, says = doctor(house)
        assert code == 1 and "stands still" in says and "renew" in says, says
        # A socket can be had then, and nothing to wait with: an error that is not the database's.
        leave(1)
        worker.wait_for("OSError: [Errno 24]")
        meanwhile = worker.output
    back_at = now()
    gate.touch()
    house.wait_until_status([held, waiting], "succeeded")
    wait_until(lambda: statusz(address)[0] == 200, 30, "all duties are on time again")
    lines = [line for line in meanwhile.splitlines() if "Too many open files" in line]
    measured(f"{len(lines)} lines of the log tell it; all well {now() - back_at:.1f} s after the end of it")
    assert 1 <= len(lines) <= 12, meanwhile
    assert house.outcomes() == {"succeeded": 2}
    house.check()


# What is taken away, and the loop that is late for it. The same warning comes once a minute.
UNWRITTEN = (("INSERT", "job_attempts", "write"), ("INSERT", "statistics_deltas", "write"))
FORBIDDEN = (
    ("UPDATE", "job_runs", "claim"),
    ("UPDATE", "job_definitions", "schedule"),
    ("UPDATE", "workers", "presence"),
)
MOST_WARNINGS = 8
DUE = """
INSERT INTO wakeboard.job_definitions (name, job_type, schedule, next_fire_at)
VALUES ('hourly', 'note', '0 * * * *', now() - interval '10 seconds')
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of a privilege that was taken away: lines of the log, and handlers that began meanwhile."""

    warnings: int
    begun: int


def take_away(house: House, worker: Wakeboard, address: str, privilege: str, table: str, loop: str) -> Taken:
    """Take the privilege away until ``loop`` is late, and give it back; assert that all is caught up with."""
    wait_until(lambda: statusz(address)[0] == 200, 60, "all duties are on time")
    before, started = len(worker.output), len(house.truth("start"))
    house.connection.execute(f"REVOKE {privilege} ON wakeboard.{table} FROM CURRENT_USER".encode())
    ids = house.enqueue_many("note", 50)
    if loop == "schedule":
        house.connection.execute(DUE)
    wait_until(lambda: loop in late(address), 90, f"{loop} is late")
    assert statusz(address)[0] == 503
    code, says = doctor(house)
    assert code == 1
    assert f"permission denied for table {table}" in says or loop == "presence", says
    found = Taken(worker.output[before:].count(" WARNING "), len(house.truth("start")) - started)
    house.connection.execute(f"GRANT {privilege} ON wakeboard.{table} TO CURRENT_USER".encode())
    house.wait_until_status(ids, "succeeded", 60)
    wait_until(lambda: statusz(address)[0] == 200, 60, "all duties are on time again")
    assert 1 <= found.warnings <= MOST_WARNINGS, worker.output[before:]
    return found


@fault(
    "F87",
    injected="what the role needs to write how runs ended is taken away, and given back",
    expected="`write` is late and says why, few lines of log, claims stop; then every answer is written",
)
def test_answers_that_cannot_be_written_are_told_and_kept(
    house: House, scale: Scale, measured: Measured
) -> None:
    worker, address = house.worker(CONCURRENCY=2), house.web()
    found = {
        table: take_away(house, worker, address, privilege, table, loop)
        for privilege, table, loop in scale.times(UNWRITTEN[:1], UNWRITTEN)
    }
    measured(
        "; ".join(f"{table}: {one.warnings} warnings, {one.begun} begun" for table, one in found.items())
    )
    assert found["job_attempts"].begun <= 25, "no more is claimed than a few for each slot"
    assert house.outcomes().keys() == {"succeeded"}
    house.check()


@fault(
    "F87",
    injected="what the role needs for claims, fires or heartbeats is taken away, and given back",
    expected="a loop is late and says why, few lines of log; then all is caught up with",
)
def test_what_the_database_forbids_is_told_and_caught_up_with(
    house: House, scale: Scale, measured: Measured
) -> None:
    worker, address = house.worker(CONCURRENCY=2), house.web()
    told = []
    for privilege, table, loop in scale.times(FORBIDDEN[:1], FORBIDDEN):
        found = take_away(house, worker, address, privilege, table, loop)
        told.append(f"{privilege} on {table}: {loop!r} late, {found.warnings} warnings")
    measured("; ".join(told))
    assert house.outcomes().keys() == {"succeeded"}
    house.check()
