"""The PostgreSQL of a test run: one server, started once, stopped at the end whatever happens.

Starts nothing by itself; the conftest asks. With ``WAKEBOARD_TEST_DATABASE_URL`` (a superuser's URL of any
server) nothing is started, and every database made there is dropped again.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from wakeboard.database import embedded
from wakeboard.database.migrations import migrate

PREFIX = "wakeboard-test-"
# Throw-away data: durability would only cost time.
SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "300"}
# A database is some 300 files and 9 MB, made and dropped for each test: in memory that takes 20 ms of
# processor time, on a disk three to twenty times that. The log of changes is kept short there.
IN_MEMORY = Path("/dev/shm")
IN_MEMORY_SETTINGS = SETTINGS | {"max_wal_size": "256MB"}
MEMORY_BYTES = 2 << 30  # many times what a whole run has there at once


@dataclass(frozen=True, slots=True)
class Server:
    """Where databases are made: ``user_url`` owns them, ``admin_url`` is a superuser.

    ``template`` is the migrated database that others are cloned from.
    """

    user_url: str
    admin_url: str
    template: str
    data_dir: str | None = None

    def url(self, name: str, *, admin: bool = False) -> str:
        """Return the libpq URL of the database ``name`` for its owner, or for the superuser."""
        return with_database(self.admin_url if admin else self.user_url, name)

    def create(self, *, empty: bool = False) -> str:
        """Create a database, a clone of the migrated one or an empty one, and return its name."""
        name = f"wbtest_{secrets.token_hex(6)}"
        source = sql.Identifier("template0" if empty else self.template)
        with self._maintenance() as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                    sql.Identifier(name), source
                )
            )
        return name

    def drop(self, name: str) -> None:
        """Drop a database and whoever is connected to it, autovacuum included (a superuser's right)."""
        with psycopg.connect(self.url("postgres", admin=True), autocommit=True) as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )

    def handed_over(self) -> dict[str, str | None]:
        """Return its fields as plain values, for another test process."""
        return asdict(self)

    def _maintenance(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.url("postgres"), autocommit=True)


def with_database(url: str, name: str) -> str:
    """Return ``url`` with another database, as a URL or key=value string like the one given."""
    if "://" not in url:
        return make_conninfo(url, dbname=name)
    scheme, rest = url.split("://", 1)
    there, question, query = rest.partition("?")
    return f"{scheme}://{there.partition('/')[0]}/{name}{question}{query}"


@contextmanager
def running_server() -> Iterator[Server]:
    """Give a server with a migrated template database; stop it (or drop what was made) at the end."""
    given = os.environ.get("WAKEBOARD_TEST_DATABASE_URL")
    with _somebody_elses(given) if given else _ours() as server:
        yield server


def _ours() -> AbstractContextManager[Server]:
    remove_leftovers(IN_MEMORY)  # or they would take the room for good
    folder = memory()
    return own_server(IN_MEMORY_SETTINGS, folder) if folder else own_server()


def memory() -> Path | None:
    """Return a folder in memory, or None where there is none or no room (a container's is small)."""
    if not os.access(IN_MEMORY, os.W_OK) or shutil.disk_usage(IN_MEMORY).free < MEMORY_BYTES:
        return None
    return IN_MEMORY if psutil.virtual_memory().available > 2 * MEMORY_BYTES else None


@contextmanager
def _somebody_elses(url: str) -> Iterator[Server]:
    template = f"wbtest_template_{secrets.token_hex(6)}"
    server = Server(url, url, template)
    try:
        _make_template(server)
        yield server
    finally:
        server.drop(template)


@contextmanager
def own_server(settings: Mapping[str, str] = SETTINGS, parent: Path | None = None) -> Iterator[Server]:
    """Give a server that nobody else uses, with a migrated template database; it is gone at the end.

    ``parent`` is where its folder is made, otherwise on a disk.
    """
    data_dir = make_folder(parent or on_disk())
    try:
        embedded.start(data_dir, settings=settings)
        admin = embedded.url(data_dir, user="postgres", database="postgres")
        server = Server(embedded.url(data_dir), admin, "wbtest_template", str(data_dir))
        _make_template(server)
        yield server
    finally:
        _remove(data_dir)


def _make_template(server: Server) -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(
                sql.Identifier(server.template)
            )
        )
    migrate(server.url(server.template))


def on_disk() -> Path:
    """Return a folder whose sockets have short addresses, on a disk (``/tmp`` is memory on some machines)."""
    folder = Path("/var/tmp")
    return folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())


def make_folder(parent: Path) -> Path:
    """Make a folder in ``parent`` for servers of this process, and remove what killed test runs left there.

    Every OS user, a server's own too, may pass through it but not list it. Its name carries our number.
    """
    remove_leftovers(parent)
    made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
    made.chmod(0o711)
    return made


def remove_leftovers(parent: Path) -> None:
    """Remove from ``parent`` the folders of processes that are gone, and stop the servers in them."""
    for folder in parent.glob(f"{PREFIX}*"):
        number = folder.name.removeprefix(PREFIX).partition("-")[0]
        mine = folder.stat().st_uid == os.geteuid()
        if mine and number.isdigit() and not psutil.pid_exists(int(number)):
            for cluster in [*folder.rglob("postgres/data")]:
                embedded.stop(cluster.parent.parent, only_if_unused=False)
            shutil.rmtree(folder, ignore_errors=True)


def _remove(data_dir: Path) -> None:
    embedded.stop(data_dir, only_if_unused=False)
    shutil.rmtree(data_dir, ignore_errors=True)
