"""The dashboard under gunicorn: where it may listen, how many threads, what it logs.

Never Werkzeug's own server, whose debugger runs code. Connections open after the fork, in each worker.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import psycopg
from flask import Flask
from gunicorn.app.base import BaseApplication

from worker import db
from worker.alerts.sentinel import Sentinel

log = logging.getLogger("wakeboard.web")

WORKERS = 2
THREADS = 8


class RefusedBind(Exception):
    """The address may not be listened on as things are; ``str()`` is one line that says what to do."""


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
    """Raise RefusedBind unless ``bind`` is loopback, or a user exists and TLS is declared (``encrypted``)."""
    if is_loopback(bind):
        return
    if not encrypted:
        raise RefusedBind(
            f"Refused to listen on {bind}: passwords would travel in clear. Use --certificate and --key, or "
            "--behind-tls-proxy when a proxy in front does TLS; or bind 127.0.0.1."
        )
    if not _has_user(url):
        raise RefusedBind(
            f"Refused to listen on {bind}: no user exists. Make one: wakeboard user add NAME --role admin."
        )


def _has_user(url: str) -> bool:
    try:
        with db.connect(url, name="wakeboard web") as connection:
            row = connection.execute(
                "SELECT EXISTS (SELECT FROM wakeboard.users WHERE disabled_at IS NULL)"
            ).fetchone()
    except (db.DatabaseError, psycopg.Error) as failure:
        raise RefusedBind(f"Refused to listen beyond loopback: users cannot be read. {failure}") from failure
    return bool(row and row[0])


class Served(BaseApplication):  # type: ignore[misc]
    """gunicorn with our settings; the app is made in each worker, after the fork."""

    def __init__(self, make_app: Callable[[], Flask], options: dict[str, Any]) -> None:
        self._make_app = make_app
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        """Take our options; no configuration file and no environment variable is read."""
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """Return the WSGI app, inside the worker process."""
        return self._make_app()


def run(
    make_app: Callable[[], Flask],
    bind: str,
    *,
    certificate: str | None = None,
    key: str | None = None,
    shutdown_seconds: float = 10,
    make_sentinel: Callable[[int], Sentinel] | None = None,
) -> None:
    """Serve until a signal says stop; returns never, gunicorn exits the process.

    ``certificate`` and ``key`` are paths of PEM files for TLS of our own. ``make_sentinel`` gives each worker
    process its watcher; its argument is the descriptor of a file that the processes share.
    """
    options: dict[str, Any] = {
        "bind": [bind],
        "worker_class": "gthread",
        "workers": WORKERS,
        "threads": THREADS,
        "preload_app": False,
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
        "when_ready": lambda _server: log.info("dashboard listens on %s", bind),
    }
    if make_sentinel is not None:
        options |= _watched(make_sentinel)
    if certificate:
        options |= {"certfile": certificate, "keyfile": key}
    Served(make_app, options).run()


def _watched(make_sentinel: Callable[[int], Sentinel]) -> dict[str, Any]:
    """Return the hooks that start a sentinel in each worker process, after the fork, and end it there."""
    stage = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process lives)
    standing: list[Sentinel] = []

    def begin(_worker: Any) -> None:
        standing.append(make_sentinel(stage.fileno()))
        standing[-1].start()

    def end(_server: Any, _worker: Any) -> None:
        while standing:
            standing.pop().stop()

    return {"post_worker_init": begin, "worker_exit": end}
