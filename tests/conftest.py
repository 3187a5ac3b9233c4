"""The test world: a real PostgreSQL, and a fresh migrated database for each test that asks for one.

Under xdist the controlling process owns the server and hands its address to the test processes.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import hypothesis
import psycopg
import pytest

from tests.support import file_order
from tests.support.postgres.servers import Server, running_server
from wakeboard.config import log
from wakeboard.database import db

# A developer's own settings must not steer the tests.
for _name in [name for name in os.environ if name.startswith("WAKEBOARD_")]:
    if _name != "WAKEBOARD_TEST_DATABASE_URL":
        del os.environ[_name]


def _outlast(_number: int, _frame: object) -> None:
    """Do nothing: unlike what ignores a signal, this is not inherited by the programs that tests start."""


# Behind nohup and & a shell has signals ignored that tests send to what they start: each process of the tests
# goes on ignoring them by a function, and says so to those that it starts itself.
for _stop in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_stop) is signal.SIG_IGN or f"TESTS_OUTLAST_{_stop.name}" in os.environ:
        os.environ[f"TESTS_OUTLAST_{_stop.name}"] = "1"
        signal.signal(_stop, _outlast)

# Examples take as long as a busy machine takes: that is no failure.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

pytest_plugins = ("tests.support.faults.result_table",)
Connection = psycopg.Connection[tuple[Any, ...]]
_controller = ExitStack()
_shared: list[Server] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin the files in our own order."""
    place = {file: n for n, file in enumerate(file_order.of(dict.fromkeys(item.path for item in items)))}
    items.sort(key=lambda item: place[item.path])


def pytest_collection_finish() -> None:
    """Look for garbage less often, and not among thousands of tests: that took a quarter of our own time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start the server (in xdist's controller, once) and tell the test process ``node`` where it is."""
    if not _shared:
        _shared.append(_controller.enter_context(running_server()))
    node.workerinput["server"] = _shared[0].handed_over()


def pytest_unconfigure() -> None:
    """Stop the server that the controller started."""
    _controller.close()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The PostgreSQL of this test run."""
    handed = getattr(request.config, "workerinput", {}).get("server")
    if handed:
        yield Server(**handed)
        return
    with running_server() as started:
        yield started


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """The libpq URL of a fresh migrated database, whose owner is an ordinary role; dropped afterwards."""
    name = server.create()
    yield server.url(name)
    server.drop(name)


@pytest.fixture(scope="module")
def shared_database(server: Server) -> Iterator[str]:
    """The URL of a migrated database that a module's tests share: rows of other tests are in it."""
    name = server.create()
    yield server.url(name)
    server.drop(name)


@pytest.fixture(scope="module")
def shared(shared_database: str) -> Iterator[Connection]:
    """A connection to ``shared_database``, for tests that look at their own rows only."""
    with db.connect(shared_database, name="wakeboard test") as opened:
        yield opened


@pytest.fixture
def empty_database(server: Server) -> Iterator[str]:
    """The libpq URL of a fresh database that was never migrated."""
    name = server.create(empty=True)
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """A connection to ``database`` as the product makes it; each statement commits by itself."""
    with db.connect(database, name="wakeboard test") as opened:
        yield opened


@pytest.fixture(autouse=True)
def log_of_a_test() -> Iterator[None]:
    """What a test configures of the log is none of the next one's: a command in a terminal writes none."""
    kept = log.logger.handlers[:], log.logger.level, log.logger.propagate
    yield
    log.flush()
    log.logger.handlers[:], level, log.logger.propagate = kept
    log.logger.setLevel(level)


@pytest.fixture
def other(database: str) -> Iterator[Connection]:
    """A second connection to the same ``database``: another worker, another operator."""
    with db.connect(database, name="wakeboard other") as opened:
        yield opened


@pytest.fixture
def superuser(server: Server, database: str) -> Iterator[Connection]:
    """A superuser's connection to ``database``."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    with db.connect(server.url(str(name), admin=True), name="wakeboard superuser") as opened:
        yield opened
