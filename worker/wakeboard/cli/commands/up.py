"""``up``: database, tables, worker and dashboard on one machine, each process restarted after a crash.

A process that ends with exit code 2 was used wrongly, which no restart mends.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType
from urllib.parse import urlsplit

import click
import psycopg

from wakeboard.accounts.sessions import create_login_link
from wakeboard.cli import reach
from wakeboard.cli.commands import accounts
from wakeboard.cli.commands.serving import EVERY_SETTING, require_folder
from wakeboard.cli.flags import LeafCommand, settings
from wakeboard.cli.printing import answer
from wakeboard.cli.refusals import NotDone, WrongUse
from wakeboard.cli.terminal import tell
from wakeboard.config import certificates, log, stop_signals
from wakeboard.config.settings import Settings
from wakeboard.config.working_directory import place
from wakeboard.core.process.process_tree import die_with_parent
from wakeboard.database import db
from wakeboard.handlers import run_as

READY_SECONDS = 60
LOOK_SECONDS = 0.1
MORE_SECONDS = 5
WRONG_USE = 2
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
# A process that ran this long had started well: after its next crash the waits begin anew.
SETTLED_SECONDS = 60.0


@click.command(cls=LeafCommand, settings=EVERY_SETTING)
@click.option("--port", type=click.IntRange(0, 65535), help="Listen on this port of 127.0.0.1 [8080].")
@click.option("--demo", is_flag=True, help="With the example shop: jobs with real effects.")
def up(port: int | None, demo: bool) -> int:
    """Run all of it on this machine: database, tables, worker with schedules, dashboard. Ctrl-C stops it."""
    log.never_wait()
    require_folder()
    bind = None if port is None else f"127.0.0.1:{port}"
    chosen = settings(bind=bind, app="wakeboard.demo" if demo else None)
    certificates.check(chosen)
    run_as.check(chosen)
    if demo:
        _require_mail_server()
    return run(chosen, demo)


def _require_mail_server() -> None:
    """Refuse the example shop before anything is started when its mail server is not installed."""
    # Only --demo needs it.
    from wakeboard.demo.mail_server import MailServerMissing, require_mail_server

    try:
        require_mail_server()
    except MailServerMissing as missing:
        raise NotDone(str(missing)) from None


class StopRequests:
    """Counts the requests to stop: one stops, a second one hurries.

    Until ``is_patient`` the signal interrupts what is going on; afterwards it is only counted.
    """

    def __init__(self) -> None:
        self.times = 0
        self.is_patient = False

    def count(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        self.times += 1
        if not self.is_patient:
            raise stop_signals.StopInterrupt


def run(chosen: Settings, demo: bool) -> int:
    """Start everything, keep it going until a signal, stop it; return the exit code."""
    chosen = replace(chosen, bind=free_address(chosen.bind))
    requests = StopRequests()
    # What nohup has a process ignore stays so. A shell lets everything ignore Ctrl-C that it starts with &: a
    # SIGINT that comes all the same is meant.
    heard = [n for n in stop_signals.STOPS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.getsignal(number) for number in heard}
    services = Services(tell)
    try:
        for number in heard:
            signal.signal(number, requests.count)
        if stop_signals.was_asked():
            return 0
        with _database(chosen, requests) as url:
            try:
                return _serve(replace(chosen, database_url=url), services, requests, demo)
            except KeyboardInterrupt:
                return 0
            finally:
                requests.is_patient = True
                asked = requests.times
                tell("Stopping.")
                services.stop(chosen.shutdown_seconds + MORE_SECONDS, lambda: requests.times > max(1, asked))
    except KeyboardInterrupt:
        return 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_address(bind: str) -> str:
    """Return HOST:PORT with the port that will be used (0: any). Raises WrongUse when it is taken."""
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
            raise WrongUse(
                f"There is no address '{host}' to listen on; allowed: 127.0.0.1 or one of ours."
            ) from wrong
        raise WrongUse(
            f"Cannot listen on {bind}: {wrong.strerror}. Stop what listens there, or choose another port: "
            f"wakeboard up --port {min(65535, int(port) + 1)}"
        ) from wrong
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _database(chosen: Settings, requests: StopRequests) -> Iterator[str]:
    """Yield the URL of a migrated database; the embedded one is stopped afterwards if it was started here."""
    if chosen.database_url is not None:
        _migrate(chosen.database_url)
        yield chosen.database_url
        return
    # Loading it takes longer than the rest of this command; with a URL it is not needed.
    from wakeboard.database import embedded

    was_running = embedded.is_running(chosen.data_dir)
    try:
        server = embedded.start(chosen.data_dir, progress=tell)
        _migrate(server.url)
        yield server.url
    finally:
        requests.is_patient = True
        if was_running:
            tell("The embedded database ran before and stays on; to stop it: wakeboard db stop")
        else:
            tell(embedded.stop(chosen.data_dir))


def _migrate(url: str) -> None:
    before, after = db.migrate(url)
    if before != after:
        tell(f"The schema was brought from {before or 'nothing'} to {after}.")


def _serve(chosen: Settings, services: Services, requests: StopRequests, demo: bool) -> int:
    extra = _prepare_demo(str(chosen.database_url)) if demo else []
    environment = os.environ | chosen.environment_variables()
    # Whoever is interrupted while it starts a process does not know it.
    requests.is_patient = True
    for number, command in enumerate(extra, 1):
        services.add(f"demo's server {number}", command, environment)
    services.add("worker", reach.ourselves("worker"), environment)
    services.add("dashboard", [sys.executable, "-P", "-m", "wakeboard_dashboard"], environment)
    return _watch(chosen, services, requests, accounts.base_address(chosen))


def _prepare_demo(url: str) -> list[list[str]]:
    from importlib import import_module

    prepared: list[list[str]] = import_module("wakeboard.demo").prepare(url)
    return prepared


def _watch(chosen: Settings, services: Services, requests: StopRequests, address: str) -> int:
    """Keep the services running until a stop is requested; print the login link once it can work."""
    deadline, told = time.monotonic() + READY_SECONDS, False
    while not requests.times:
        wrong = services.restart_ended()
        if wrong is not None:
            return wrong
        if not told and is_healthy(address):
            _print_link(str(chosen.database_url), address)
            told = True
        elif not told and time.monotonic() > deadline:
            tell(f"The dashboard at {address} does not answer yet. When it does: wakeboard login-link")
            told = True
        time.sleep(LOOK_SECONDS)
    return 0


def _print_link(url: str, address: str) -> None:
    try:
        with db.connect(url, name="wakeboard up") as connection:
            token = create_login_link(connection, accounts.os_user())
    except (db.DatabaseError, psycopg.Error) as failure:
        tell(f"Wakeboard is at {address}, but no login link could be made: {failure}")
        return
    link = f"{address}/login?token={token}"
    answer({"url": address, "login": link}, f"Wakeboard is at {link}")
    sys.stdout.flush()


def is_healthy(address: str) -> bool:
    """Return whether the dashboard at ``address`` says that it is well."""
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


@dataclass
class Service:
    """One process that ``up`` keeps running."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    due: float = 0.0
    wait_seconds: float = FIRST_WAIT_SECONDS

    def start(self) -> None:
        """Start it, in a group of its own so that a Ctrl-C in the terminal reaches us alone."""
        self.started = time.monotonic()
        us = os.getpid()
        self.process = subprocess.Popen(
            self.command,
            env=dict(self.environment),
            # Ours may have been removed since.
            cwd=place(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # Should we be killed, it ends as after SIGTERM instead of holding the port for ever.
            preexec_fn=lambda: die_with_parent(us, signal.SIGTERM),
        )

    def reap(self) -> int | None:
        """Return the exit code (negative: a signal) of a process that has just ended, else None."""
        if self.process is None or not self._has_exited(self.process.pid):
            return None
        # Its id is not free before wait(), so this group is still its own.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.process = None
        return code

    @staticmethod
    def _has_exited(pid: int) -> bool:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def terminate(self) -> None:
        """Send SIGTERM to the process itself: it knows its own children."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it with its whole group."""
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)


@dataclass
class Services:
    """All processes of ``up``. ``tell`` gets a sentence when one ends and when it is started again."""

    tell: Callable[[str], None]
    members: list[Service] = field(default_factory=list)

    def add(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start another process called ``name``."""
        self.members.append(Service(name, command, environment))
        self.members[-1].start()

    def restart_ended(self) -> int | None:
        """Note what has ended and start it again when its time has come; return 2 for a wrong use."""
        for member in self.members:
            code = member.reap()
            if code == WRONG_USE:
                self.tell(f"The {member.name} cannot run like this; see the line above.")
                return WRONG_USE
            if code is not None:
                self._plan_restart(member, code)
            elif member.process is None and time.monotonic() >= member.due:
                member.start()
        return None

    def _plan_restart(self, member: Service, code: int) -> None:
        if time.monotonic() - member.started > SETTLED_SECONDS:
            member.wait_seconds = FIRST_WAIT_SECONDS
        member.due = time.monotonic() + member.wait_seconds
        self.tell(f"The {member.name} {describe_exit(code)}; it starts again in {member.wait_seconds:g} s.")
        member.wait_seconds = min(LONGEST_WAIT_SECONDS, member.wait_seconds * 2)

    def stop(self, seconds: float, hurry: Callable[[], bool]) -> None:
        """Terminate all, wait up to ``seconds`` or until ``hurry()``, and kill the rest."""
        for member in self.members:
            member.terminate()
        deadline = time.monotonic() + seconds
        while any(self._is_running(member) for member in self.members):
            if time.monotonic() > deadline or hurry():
                for member in self.members:
                    member.kill()
                deadline = time.monotonic() + LONGEST_WAIT_SECONDS
            time.sleep(0.05)

    @staticmethod
    def _is_running(member: Service) -> bool:
        member.reap()
        return member.process is not None


def describe_exit(code: int) -> str:
    """Return how a process ended, in words; a negative ``code`` is a signal."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
