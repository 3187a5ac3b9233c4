"""docs/handlers.md: each worked example runs as it stands, is killed in its worst moment, happens once."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Connection
from tests.support import factories
from tests.support.processes import Wakeboard, wait_until, wakeboard
from tests.support.receivers import Mailbox, mailbox, serving
from tests.support.workers.worker_processes import SHORT
from wakeboard import enqueue

__all__ = ["mailbox"]

PAGE = Path(__file__).parents[2] / "docs" / "handlers.md"
WORKED = "## Worked examples"
# What the page leaves to its reader.
SHOP = """
import os, time
from pathlib import Path

def in_sent_folder(message_id):
    return message_id if message_id in Path(os.environ["SHOP_SENT"]).read_text().split() else None

def orders_of(day):
    yield f"{day},1"
    while not Path(os.environ["SHOP_GATE"]).exists():
        time.sleep(0.01)
    yield f"{day},2"
"""


class Provider(ThreadingHTTPServer):
    """A partner and a bank: remembers each request, and may keep its answer to itself.

    It charges again for a key that it has seen: it stands for a bank that has forgotten it.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Door)
        self.keys: list[str] = []
        self.charges: dict[str, list[str]] = {}
        self.answers = threading.Event()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


class _Door(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        key = self.headers["Idempotency-Key"]
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.keys.append(key)
        made = self.server.charges.setdefault(key, [])
        made.append(f"ch_{len(made) + 1}")
        self.server.answers.wait(30)
        self.reply(200, {"charge": made[-1]})

    def do_GET(self) -> None:
        made = self.server.charges.get(self.path.removeprefix("/charges/"))
        self.reply(200 if made else 404, {"charge": made[0] if made else None})

    def reply(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except ConnectionError:
            return  # its asker was killed

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A partner and a bank that take requests and do not answer yet."""
    server = Provider()
    with serving(server):
        yield server
        server.answers.set()


@contextmanager
def the_page_at_work(database: str, folder: Path, **environment: object) -> Iterator[Wakeboard]:
    """Run a worker whose handlers are the page's examples, with the waiting between tries taken out."""
    examples = PAGE.read_text().partition(WORKED)[2]
    program = "\n".join(re.findall(r"```python\n(.*?)```", examples, re.DOTALL))
    (folder / "page.py").write_text(
        re.sub(r'@job\("(\w+)"(, backoff="[^"]*")?', r'@job("\1", backoff="fixed 0.2s"', program)
    )
    (folder / "shop.py").write_text(SHOP)
    given = {"WAKEBOARD_APP": "page"} | {f"SHOP_{name}": str(value) for name, value in environment.items()}
    with wakeboard("worker", database=database, environment=SHORT | given, folder=folder) as started:
        yield started


def kill_whoever(worker: Wakeboard, is_it: Callable[[psutil.Process], bool]) -> None:
    """Kill the one handler's process that is at it."""
    (victim,) = [member for member in worker.family() if is_it(member)]
    victim.kill()
    victim.wait(10)


def talks_to(port: int, process: psutil.Process) -> bool:
    """Whether the process has a connection to the port."""
    return any(each.raddr and each.raddr.port == port for each in process.net_connections("tcp"))


def writes_below(folder: Path, process: psutil.Process) -> bool:
    """Whether the process has a file open in the folder."""
    return any(Path(each.path).parent == folder for each in process.open_files())


def ends_well(connection: Connection, run_id: int) -> list[str]:
    """Wait until the run has succeeded; return how its attempts ended."""
    wait_until(lambda: factories.status(connection, run_id) == "succeeded", 30)
    return [str(one["outcome"]) for one in factories.attempts(connection, run_id)]


def test_a_receipt_whose_sender_was_killed_is_found_by_its_message_id_and_not_sent_again(
    connection: Connection, database: str, tmp_path: Path, mailbox: Mailbox
) -> None:
    sent = tmp_path / "sent"
    sent.touch()
    mailbox.hold = threading.Event()
    run_id = enqueue(connection, "send_receipt", {"order": 7, "to": "ada@shop.example"})
    server = f"127.0.0.1:{mailbox.port}"
    with the_page_at_work(database, tmp_path, SMTP=server, SENT=sent) as worker:
        wait_until(lambda: mailbox.letters, 30, "the mail is taken and not answered")
        sent.write_text(str(mailbox.letters[0]["Message-ID"]))
        kill_whoever(worker, partial(talks_to, mailbox.port))
        assert ends_well(connection, run_id) == ["failed", "succeeded"]
    mailbox.hold.set()
    assert [letter["Message-ID"] for letter in mailbox.letters] == ["<receipt-7@shop.example>"]
    assert [row["status"] for row in factories.rows(connection, "effects")] == ["done"]


def test_a_webhook_whose_sender_was_killed_comes_again_under_the_same_key(
    connection: Connection, database: str, tmp_path: Path, provider: Provider
) -> None:
    run_id = enqueue(connection, "tell_partner", {"order": 7}, key="order:7")
    with the_page_at_work(database, tmp_path, PARTNER=provider.url) as worker:
        wait_until(lambda: provider.keys, 30, "the partner has the request")
        kill_whoever(worker, partial(talks_to, provider.server_port))
        provider.answers.set()
        assert ends_well(connection, run_id) == ["failed", "succeeded"]
    assert provider.keys == ["order:7", "order:7"]


def test_a_payment_whose_payer_was_killed_is_looked_up_and_charged_once(
    connection: Connection, database: str, tmp_path: Path, provider: Provider
) -> None:
    connection.execute("CREATE TABLE public.orders (id int PRIMARY KEY, charge text)")
    connection.execute("INSERT INTO public.orders VALUES (7, NULL)")
    run_id = enqueue(connection, "charge_order", {"order": 7})
    with the_page_at_work(database, tmp_path, BANK=provider.url) as worker:
        wait_until(lambda: provider.keys, 30, "the bank has the charge")
        kill_whoever(worker, partial(talks_to, provider.server_port))
        provider.answers.set()
        assert ends_well(connection, run_id) == ["failed", "succeeded"]
    assert provider.charges == {"order-7": ["ch_1"]}
    assert connection.execute("SELECT charge FROM public.orders").fetchall() == [("ch_1",)]


def test_a_file_whose_writer_was_killed_is_whole_or_not_there(
    connection: Connection, database: str, tmp_path: Path
) -> None:
    exports, gate = tmp_path / "exports", tmp_path / "gate"
    exports.mkdir()
    path = exports / "orders-2026-11-21.csv"
    path.write_text("yesterday's\n")
    run_id = enqueue(connection, "export_orders", {"day": "2026-11-21"})
    with the_page_at_work(database, tmp_path, EXPORTS=exports, GATE=gate) as worker:
        wait_until(lambda: len(list(exports.iterdir())) == 2, 30, "the file is half written")
        kill_whoever(worker, partial(writes_below, exports))
        assert path.read_text() == "yesterday's\n"
        gate.touch()
        assert ends_well(connection, run_id) == ["failed", "succeeded"]
    assert path.read_text() == "2026-11-21,1\n2026-11-21,2\n"
    assert [each.name for each in exports.iterdir()] == [path.name]
