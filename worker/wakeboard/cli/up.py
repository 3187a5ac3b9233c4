"""All of it on one machine: database, tables, worker, dashboard, and their end: what ``up`` does."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from urllib.parse import urlsplit

import psycopg

from wakeboard.accounts.users import create_login_link
from wakeboard.cli import people, reach
from wakeboard.cli.printing import answer, tell
from wakeboard.cli.refusals import Wrong
from wakeboard.cli.siblings import Family
from wakeboard.config import stop_signals
from wakeboard.config.settings import Settings
from wakeboard.database import db

READY_SECONDS = 60
LOOK_SECONDS = 0.1
MORE_SECONDS = 5


class Wish:
    """Whether somebody wants an end: once is enough, twice is haste.

    Until ``is_patient`` the signal interrupts what is going on; afterwards it is only noted.
    """

    def __init__(self) -> None:
        self.times = 0
        self.is_patient = False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Take a signal."""
        self.times += 1
        if not self.is_patient:
            raise stop_signals.Stopped


def run(settings: Settings, demo: bool) -> int:
    """Start everything, keep it going until a signal, stop it; return the exit code."""
    settings = replace(settings, bind=free_address(settings.bind))
    wish = Wish()
    # What nohup has a process ignore stays so. A shell lets everything ignore Ctrl-C that it starts with &: a
    # SIGINT that comes all the same is meant.
    heard = [n for n in stop_signals.STOPS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.getsignal(number) for number in heard}
    family = Family(tell)
    try:
        for number in heard:
            signal.signal(number, wish.note)
        if stop_signals.was_asked():
            return 0
        with _database(settings, wish) as url:
            try:
                return _serve(replace(settings, database_url=url), family, wish, demo)
            except KeyboardInterrupt:
                return 0
            finally:
                wish.is_patient = True
                asked = wish.times
                tell("Stopping.")
                family.stop(settings.shutdown_seconds + MORE_SECONDS, lambda: wish.times > max(1, asked))
    except KeyboardInterrupt:
        return 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_address(bind: str) -> str:
    """Return HOST:PORT with the port that will be used (0: any). Raises Wrong when it is taken."""
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
            port = str(probe.getsockname()[1])
    except OSError as wrong:
        if isinstance(wrong, socket.gaierror):
            raise Wrong(
                f"There is no address '{host}' to listen on; allowed: 127.0.0.1 or one of ours."
            ) from wrong
        raise Wrong(
            f"Cannot listen on {bind}: {wrong.strerror}. Stop what listens there, or choose another port: "
            f"wakeboard up --port {min(65535, int(port) + 1)}"
        ) from wrong
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _database(settings: Settings, wish: Wish) -> Iterator[str]:
    """Yield the URL of a migrated database; the embedded one is stopped afterwards if it was started here."""
    if settings.database_url is not None:
        _migrate(settings.database_url)
        yield settings.database_url
        return
    from wakeboard.database import embedded

    was_running = embedded.is_running(settings.data_dir)
    try:
        server = embedded.start(settings.data_dir, progress=tell)
        _migrate(server.url)
        yield server.url
    finally:
        wish.is_patient = True
        if was_running:
            tell("The embedded database ran before and stays on; to stop it: wakeboard db stop")
        else:
            tell(embedded.stop(settings.data_dir))


def _migrate(url: str) -> None:
    before, after = db.migrate(url)
    if before != after:
        tell(f"The schema was brought from {before or 'nothing'} to {after}.")


def _serve(settings: Settings, family: Family, wish: Wish, demo: bool) -> int:
    extra = _prepare_demo(str(settings.database_url)) if demo else []
    environment = os.environ | settings.environment_variables()
    # Whoever is interrupted while it starts a process does not know it.
    wish.is_patient = True
    for number, command in enumerate(extra, 1):
        family.add(f"demo's server {number}", command, environment)
    family.add("worker", reach.ourselves("worker"), environment)
    family.add("dashboard", [sys.executable, "-P", "-m", "wakeboard_dashboard"], environment)
    return _watch(settings, family, wish, people.base_address(settings))


def _prepare_demo(url: str) -> list[list[str]]:
    from importlib import import_module

    prepared: list[list[str]] = import_module("wakeboard.demo").prepare(url)
    return prepared


def _watch(settings: Settings, family: Family, wish: Wish, address: str) -> int:
    """Look after the family until somebody wants an end; print the login link once it can work."""
    deadline, told = time.monotonic() + READY_SECONDS, False
    while not wish.times:
        wrong = family.look()
        if wrong is not None:
            return wrong
        if not told and answers(address):
            _print_link(str(settings.database_url), address)
            told = True
        elif not told and time.monotonic() > deadline:
            tell(f"The dashboard at {address} does not answer yet. When it does: wakeboard login-link")
            told = True
        time.sleep(LOOK_SECONDS)
    return 0


def _print_link(url: str, address: str) -> None:
    try:
        with db.connect(url, name="wakeboard up") as connection:
            token = create_login_link(connection, people.os_user())
    except (db.DatabaseError, psycopg.Error) as failure:
        tell(f"Wakeboard is at {address}, but no login link could be made: {failure}")
        return
    link = f"{address}/login?token={token}"
    answer({"url": address, "login": link}, f"Wakeboard is at {link}")
    sys.stdout.flush()


def answers(address: str) -> bool:
    """Tell whether the dashboard at ``address`` is well."""
    parts = urlsplit(address)
    host, port = str(parts.hostname), parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        # Our own server, whose certificate need not be for this name.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=2, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
