"""``up``: database, tables, worker and dashboard on one machine, each process restarted after a crash.

A process that ends with exit code 2 was used wrongly: no restart helps.
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
from wakeboard.cli.commands.accounts import base_address
from wakeboard.cli.commands.serving import EVERY_SETTING, module_command, require_folder
from wakeboard.cli.exceptions import CommandFailed, WrongUse
from wakeboard.cli.flags import LeafCommand, read_settings
from wakeboard.cli.printing import print_result
from wakeboard.cli.terminal import print_notice
from wakeboard.config import certificates, log, stop_signals
from wakeboard.config.settings import Settings
from wakeboard.config.working_directory import ROOT, current_folder
from wakeboard.core.process import os_user
from wakeboard.core.process.process_tree import die_with_parent
from wakeboard.database import db, migrations
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
    log.write_in_background()
    require_folder()
    bind = None if port is None else f"127.0.0.1:{port}"
    settings = read_settings(bind=bind, app="wakeboard.demo" if demo else None)
    certificates.check(settings)
    run_as.check(settings)
    if demo:
        _require_mail_server()
    return run(settings, demo)


def _require_mail_server() -> None:
    """Raise CommandFailed when the mail server of the example shop is not installed."""
    # Imported here, because only --demo needs it.
    from wakeboard.demo.mail_server import MailServerMissing, require_mail_server

    try:
        require_mail_server()
    except MailServerMissing as missing:
        raise CommandFailed(str(missing)) from None


class StopRequests:
    """Counts the requests to stop: one stops, a second one hurries.

    The signal interrupts the main thread while ``is_interrupting``; otherwise it is only counted.
    """

    def __init__(self) -> None:
        self.times = 0
        self.is_interrupting = True

    def count(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        self.times += 1
        if self.is_interrupting:
            raise stop_signals.StopInterrupt


def run(settings: Settings, demo: bool) -> int:
    """Start everything, keep it going until a signal, stop it; return the exit code."""
    settings = replace(settings, bind=free_address(settings.bind))
    requests = StopRequests()
    # A SIGHUP that nohup has ignored stays ignored. A shell has what it starts with & ignore SIGINT: one that
    # comes all the same is meant.
    handled = [
        n for n in stop_signals.STOPS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN
    ]
    before = {number: signal.getsignal(number) for number in handled}
    services = Services()
    try:
        for number in handled:
            signal.signal(number, requests.count)
        if stop_signals.is_stop_requested():
            return 0
        with _database(settings, requests) as url:
            try:
                return _serve(replace(settings, database_url=url), services, requests, demo)
            except KeyboardInterrupt:
                return 0
            finally:
                requests.is_interrupting = False
                requested = requests.times
                print_notice("Stopping.")
                services.stop(
                    settings.shutdown_seconds + MORE_SECONDS, lambda: requests.times > max(1, requested)
                )
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
def _database(settings: Settings, requests: StopRequests) -> Iterator[str]:
    """Yield the URL of a migrated database; the embedded one is stopped afterwards if it was started here."""
    if settings.database_url is not None:
        _migrate(settings.database_url)
        yield settings.database_url
        return
    # Imported without a URL only: it takes longer than the rest of this command.
    from wakeboard.database import embedded

    was_running = embedded.is_running(settings.data_dir)
    try:
        server = embedded.start(settings.data_dir, progress=print_notice)
        _migrate(server.url)
        yield server.url
    finally:
        requests.is_interrupting = False
        if was_running:
            print_notice("The embedded database ran before and stays on; to stop it: wakeboard db stop")
        else:
            print_notice(embedded.stop(settings.data_dir))


def _migrate(url: str) -> None:
    before, after = migrations.migrate(url)
    if before != after:
        print_notice(f"The schema was brought from {before or 'nothing'} to {after}.")


def _serve(settings: Settings, services: Services, requests: StopRequests, demo: bool) -> int:
    demo_servers: list[list[str]] = []
    if demo:
        # Imported here, because the import registers the handlers of the example shop.
        from wakeboard.demo import prepare

        demo_servers = prepare(str(settings.database_url))
    environment = os.environ | settings.environment_variables()
    # An interrupt while a process is started would lose it.
    requests.is_interrupting = False
    for number, command in enumerate(demo_servers, 1):
        services.add(f"demo's server {number}", command, environment)
    services.add("worker", module_command("wakeboard", "worker"), environment)
    services.add("dashboard", module_command("wakeboard_dashboard"), environment)
    return _watch(settings, services, requests, base_address(settings))


def _watch(settings: Settings, services: Services, requests: StopRequests, address: str) -> int:
    """Keep the services running until a stop is requested; print the login link once it can work."""
    deadline, is_link_printed = time.monotonic() + READY_SECONDS, False
    while not requests.times:
        if services.restart_ended():
            return WRONG_USE
        if not is_link_printed and is_healthy(address):
            _print_link(str(settings.database_url), address)
            is_link_printed = True
        elif not is_link_printed and time.monotonic() > deadline:
            print_notice(
                f"The dashboard at {address} does not answer yet. When it does: wakeboard login-link"
            )
            is_link_printed = True
        time.sleep(LOOK_SECONDS)
    return 0


def _print_link(url: str, address: str) -> None:
    try:
        with db.connect(url, name="wakeboard up") as connection:
            token = create_login_link(connection, os_user.name())
    except (db.DatabaseError, psycopg.Error) as failure:
        print_notice(f"Wakeboard is at {address}, but no login link could be made: {failure}")
        return
    link = f"{address}/login?token={token}"
    print_result({"url": address, "login": link}, f"Wakeboard is at {link}")
    sys.stdout.flush()


def is_healthy(address: str) -> bool:
    """Return whether the dashboard at ``address`` answers that it is healthy."""
    parts = urlsplit(address)
    host, port = str(parts.hostname), parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        # Our own server: its certificate need not be for this name.
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
        """Start it in a process group of its own, so that a Ctrl-C in the terminal reaches ``up`` alone."""
        self.started = time.monotonic()
        parent = os.getpid()
        self.process = subprocess.Popen(
            self.command,
            env=dict(self.environment),
            # The current folder may have been removed.
            cwd=current_folder() or ROOT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # When ``up`` is killed, it gets SIGTERM instead of holding the port for ever.
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
        )

    def reap(self) -> int | None:
        """Return the exit code (negative: a signal) of a process that has just ended, else None."""
        if self.process is None:
            return None
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        # The process id is not free before wait(), so the group is still its own.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.process = None
        return code

    def is_running(self) -> bool:
        """Reap the process if it has ended; return whether it runs."""
        self.reap()
        return self.process is not None

    def terminate(self) -> None:
        """Send SIGTERM to the process alone, which ends its own children."""
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
    """All processes of ``up``."""

    members: list[Service] = field(default_factory=list)

    def add(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start another process called ``name``."""
        self.members.append(Service(name, command, environment))
        self.members[-1].start()

    def restart_ended(self) -> bool:
        """Start each process that has ended again, after its wait; return whether one was used wrongly."""
        for member in self.members:
            code = member.reap()
            if code == WRONG_USE:
                print_notice(f"The {member.name} cannot run like this; see the line above.")
                return True
            if code is not None:
                self._plan_restart(member, code)
            elif member.process is None and time.monotonic() >= member.due:
                member.start()
        return False

    def _plan_restart(self, member: Service, code: int) -> None:
        if time.monotonic() - member.started > SETTLED_SECONDS:
            member.wait_seconds = FIRST_WAIT_SECONDS
        member.due = time.monotonic() + member.wait_seconds
        print_notice(
            f"The {member.name} {describe_exit(code)}; it starts again in {member.wait_seconds:g} s."
        )
        member.wait_seconds = min(LONGEST_WAIT_SECONDS, member.wait_seconds * 2)

    def stop(self, seconds: float, hurry: Callable[[], bool]) -> None:
        """Terminate all, wait up to ``seconds`` or until ``hurry()``, and kill the rest."""
        for member in self.members:
            member.terminate()
        deadline = time.monotonic() + seconds
        while any(member.is_running() for member in self.members):
            if time.monotonic() > deadline or hurry():
                for member in self.members:
                    member.kill()
                deadline = time.monotonic() + LONGEST_WAIT_SECONDS
            time.sleep(0.05)


def describe_exit(code: int) -> str:
    """Return how a process ended, in words; a negative ``code`` is a signal."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
