"""Where the dashboard may listen, with TLS of its own or behind a proxy, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import trustme

from tests.conftest import Connection
from tests.support.processes import free_port
from wakeboard.accounts import users
from wakeboard.config import certificates
from wakeboard.config.settings import Settings, SettingsError
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard_dashboard.server import serve

BOSS = Actor("cli:boss", Role.ADMIN, "cli")
PASSWORD = "seven small boats at dawn"


def test_beyond_loopback_it_needs_tls_and_a_user(database: str, connection: Connection) -> None:
    serve.check_bind("127.0.0.1:8080", database, encrypted=False)
    serve.check_bind("[::1]:8080", database, encrypted=False)
    for bind in ("0.0.0.0:8080", "192.0.2.7:8080", "[::]:8080", "ops.example.com:80"):
        with pytest.raises(serve.BindRefused, match="BEHIND_TLS_PROXY"):
            serve.check_bind(bind, database, encrypted=False)
        with pytest.raises(serve.BindRefused, match="wakeboard user add"):
            serve.check_bind(bind, database, encrypted=True)
    users.create_user(connection, BOSS, "vera", Role.ADMIN, PASSWORD)
    serve.check_bind("0.0.0.0:8080", database, encrypted=True)


def environment(**more: str) -> dict[str, str]:
    """Return this process' environment without settings of ours, plus ``more``."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WAKEBOARD_")}
    return {**clean, **more}


@contextmanager
def serving(bind: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a dashboard that listens on ``bind``."""
    command = [sys.executable, "-m", "wakeboard_dashboard", "--bind", bind]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(**variables)) as served:
        try:
            assert served.stderr is not None
            assert f"Dashboard starts, to listen on {bind}." in served.stderr.readline()
            assert f"listens on {bind}" in served.stderr.readline()
            yield served
        finally:
            served.kill()


def test_a_refused_address_is_one_line_and_never_opens(database: str) -> None:
    command = [sys.executable, "-m", "wakeboard_dashboard", "--bind", "0.0.0.0:0", "--database-url", database]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment())
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1 and ended.stderr.startswith("Refused to listen on 0.0.0.0:0")


def test_an_address_that_is_taken_is_one_line_and_may_be_tried_again(database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        bind = f"127.0.0.1:{other.getsockname()[1]}"
        command = [sys.executable, "-m", "wakeboard_dashboard", "--bind", bind, "--database-url", database]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment())
    # Not 2, after which systemd would not start it again.
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(f"Cannot listen on {bind}: Address already in use. Stop what")


def test_an_address_that_its_last_owner_is_about_to_leave_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        leaving = threading.Timer(0.5, other.close)
        leaving.start()
        serve.check_free(f"127.0.0.1:{other.getsockname()[1]}")
        leaving.join()


def test_with_a_certificate_of_its_own_it_serves_https(database: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = tmp_path / "dashboard.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    bind = f"127.0.0.1:{free_port()}"
    with (
        serving(bind, WAKEBOARD_DATABASE_URL=database, WAKEBOARD_CERTIFICATE=str(certificate)),
        urllib.request.urlopen(f"https://{bind}/healthz", timeout=20, context=trusting) as answer,
    ):
        assert answer.status == 200


def test_a_certificate_that_is_none_is_one_line_and_never_opens(database: str, tmp_path: Path) -> None:
    made, other = (trustme.CA().issue_cert("127.0.0.1") for _ in range(2))
    certificate, key, word, gone = (tmp_path / name for name in ("cert.pem", "key.pem", "word.pem", "gone"))
    made.cert_chain_pems[0].write_to_path(certificate)
    other.private_key_pem.write_to_path(key)
    word.write_text("a word")
    for given, with_key, said in (
        (certificate, key, r"must hold a certificate and its private key.* \(KEY_VALUES_MISMATCH\)\.$"),
        (certificate, None, r"must hold a certificate and its private key.* without a passphrase\.$"),
        (certificate, certificate, r"must hold a certificate and its private key.* without a passphrase\.$"),
        (word, None, "must hold a certificate and its private key"),
        (gone, key, "No such file"),
        (tmp_path, None, "Is a directory"),
    ):
        flags = {"database_url": database, "certificate": given, "certificate_key": with_key}
        with pytest.raises(SettingsError, match=f"{given.name}.*{said}") as refused:
            certificates.check(Settings.load(flags, environ={}))
        assert "\n" not in str(refused.value) and str(refused.value).count(str(given)) == 1
    command = [sys.executable, "-m", "wakeboard_dashboard", "--database-url", database]
    names = {"WAKEBOARD_CERTIFICATE": str(certificate), "WAKEBOARD_CERTIFICATE_KEY": str(key)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment(**names))
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1


def test_the_served_dashboard_stops_at_a_signal_and_leaves_nothing(database: str) -> None:
    bind = f"127.0.0.1:{free_port()}"
    with serving(bind, WAKEBOARD_DATABASE_URL=database, FLASK_DEBUG="1") as served:
        with urllib.request.urlopen(f"http://{bind}/healthz", timeout=20) as answer:
            assert answer.status == 200
        children = psutil.Process(served.pid).children(recursive=True)
        assert children
        served.send_signal(signal.SIGTERM)
        assert served.wait(timeout=20) == 0
        _, alive = psutil.wait_procs(children, timeout=5)
        assert alive == []
