"""Serves the dashboard by gunicorn: where it may listen, processes, threads, signals.

Werkzeug's own server is never used: its debugger runs code. No connection is open at the fork.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Any

import psycopg
from flask import Flask
from gunicorn.app.base import BaseApplication

from wakeboard.alerts.web_watcher import WebWatcher
from wakeboard.config import stop_signals
from wakeboard.database import db
from wakeboard_dashboard.pages import templates
from wakeboard_dashboard.web.request_metrics import FOLDER

log = logging.getLogger("wakeboard.web")

# For the heartbeat files of gunicorn's workers: on a slow disk they would look dead. A file that a killed
# process leaves is gone here after a restart of the machine.
SHARED_MEMORY = "/dev/shm"
IGNORED_SIGNALS = (signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU)
# How long another process that listens on the address may take to end.
WAIT_SECONDS = 3.0


class BindRefused(Exception):
    """Listening on the address is not allowed; ``str()`` is one line that says what to do."""


class AddressInUse(Exception):
    """The address cannot be listened on now; ``str()`` is one line that says what to do."""


def is_loopback(bind: str) -> bool:
    """Return whether ``bind`` (HOST:PORT) is reachable from this machine alone."""
    host = bind.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(bind: str, url: str, *, encrypted: bool) -> None:
    """Raise BindRefused unless ``bind`` is loopback, or a user exists and TLS is declared (``encrypted``)."""
    if is_loopback(bind):
        return
    if not encrypted:
        raise BindRefused(
            f"Refused to listen on {bind}: passwords would travel in clear. Set WAKEBOARD_CERTIFICATE and "
            "WAKEBOARD_CERTIFICATE_KEY, or WAKEBOARD_BEHIND_TLS_PROXY=1 when a proxy in front does TLS; "
            "or bind 127.0.0.1."
        )
    if not _has_user(url):
        raise BindRefused(
            f"Refused to listen on {bind}: no user exists. Make one: wakeboard user add NAME --role admin."
        )


def check_free(bind: str) -> None:
    """Raise AddressInUse when ``bind`` cannot be listened on: it is in use, or not of this machine.

    Processes of a killed dashboard listen until they notice; they are waited for.
    """
    until = monotonic() + WAIT_SECONDS
    while (wrong := _refusal(bind)) is not None:
        if wrong.errno != errno.EADDRINUSE or monotonic() > until:
            raise AddressInUse(
                f"Cannot listen on {bind}: {wrong.strerror}. Stop what listens there, or choose another "
                "address: WAKEBOARD_BIND, --bind."
            ) from wrong
        sleep(0.1)


def _refusal(bind: str) -> OSError | None:
    host, _, port = bind.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as wrong:
        return wrong
    return None


def _has_user(url: str) -> bool:
    try:
        with db.connect(url, name="wakeboard web") as connection:
            row = connection.execute(
                "SELECT EXISTS (SELECT FROM wakeboard.users WHERE disabled_at IS NULL)"
            ).fetchone()
    except (db.DatabaseError, psycopg.Error) as failure:
        raise BindRefused(f"Refused to listen beyond loopback: users cannot be read. {failure}") from failure
    return bool(row and row[0])


class DashboardApplication(BaseApplication):  # type: ignore[misc]
    """gunicorn with our settings; the app is made once, before the fork."""

    def __init__(self, make_app: Callable[[], Flask], options: dict[str, object]) -> None:
        self._make_app = make_app
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        """Set our options; no configuration file and no environment variable is read."""
        for name, value in self._options.items():
            # Before 25.1 there is no control socket that could be disabled.
            if name in self.cfg.settings or name != "control_socket_disable":
                self.cfg.set(name, value)

    def load(self) -> Flask:
        """Return the WSGI app with all templates loaded: its processes share their memory."""
        stop_signals.exit_if_requested()
        app = self._make_app()
        templates.load_all(app.jinja_env)
        return app


def run(
    make_app: Callable[[], Flask],
    bind: str,
    *,
    processes: int,
    threads: int,
    certificate: Path | None = None,
    key: Path | None = None,
    shutdown_seconds: float = 10,
    make_watcher: Callable[[int], WebWatcher] | None = None,
) -> None:
    """Serve until a signal stops it; never returns, gunicorn exits the process.

    ``certificate`` and ``key`` are paths of PEM files for TLS of our own. ``make_watcher`` gives each worker
    process its watcher; its argument is the descriptor of a file that the processes share.
    """
    options: dict[str, object] = {
        "bind": [bind],
        "worker_class": "gthread",
        "workers": processes,
        "threads": threads,
        "preload_app": True,
        "control_socket_disable": True,
        "graceful_timeout": int(shutdown_seconds),
        "timeout": 30,
        "keepalive": 15,
        "accesslog": None,
        "errorlog": "-",
        "loglevel": "warning",
        "proc_name": "wakeboard-web",
        "forwarded_allow_ips": "",
        "limit_request_line": 8190,
        "limit_request_fields": 60,
        "when_ready": lambda _server: _report_ready(bind),
    }
    memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    if memory:
        options["worker_tmp_dir"] = memory
    options |= _hooks(make_watcher)
    if certificate:
        options |= {"certfile": str(certificate), "keyfile": key and str(key)}
    os.register_at_fork(after_in_parent=stop_signals.unblock)
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="wakeboard-metrics-", dir=memory)
    server = os.getpid()
    try:
        DashboardApplication(make_app, options).run()
    finally:
        # The forked processes leave by here, too.
        if os.getpid() == server:
            shutil.rmtree(os.environ[FOLDER], ignore_errors=True)


def _report_ready(bind: str) -> None:
    """Log that the dashboard listens, and ignore the signals of gunicorn that do not fit it.

    SIGUSR2 would start a second dashboard beside the first. SIGTTIN and SIGTTOU, which a shell sends to
    background jobs, would add or remove a process; their number is a setting. gunicorn does not know of a
    stop that came before it handled signals.
    """
    stop_signals.exit_if_requested()
    for number in IGNORED_SIGNALS:
        signal.signal(number, _log_ignored_signal)
    log.info("dashboard listens on %s", bind)


def _log_ignored_signal(number: int, _frame: FrameType | None) -> None:
    name = signal.Signals(number).name
    log.warning("%s is not taken. SIGTERM ends the dashboard; start it again for another version.", name)


def prepare_fork(_server: object, _worker: object) -> None:
    """Freeze the garbage collector before a fork: objects that it visits would be copied.

    A stop signal waits in the child until it can handle one, or gunicorn would wait in vain for its end.
    """
    stop_signals.block()
    gc.collect()
    gc.freeze()


def _hooks(make_watcher: Callable[[int], WebWatcher] | None) -> dict[str, object]:
    """Return gunicorn's hooks around each worker process, which has a watcher of its own."""
    stage = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process lives)
    watchers: list[WebWatcher] = []

    def begin(_worker: object) -> None:
        stop_signals.unblock()
        if make_watcher is not None:
            watchers.append(make_watcher(stage.fileno()))
            watchers[-1].start()

    def end(_server: object, _worker: object) -> None:
        while watchers:
            watchers.pop().stop()

    def forget(_server: Any, worker: Any) -> None:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(worker.pid, os.environ[FOLDER])  # type: ignore[no-untyped-call]

    return {
        "child_exit": forget, "post_worker_init": begin, "pre_fork": prepare_fork, "worker_exit": end,
    }  # fmt: skip
