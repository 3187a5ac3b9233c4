"""The shop's providers on loopback: a bank, a stock service with outages, an address service that hangs.

``POST /charges`` (idempotent by key), ``GET /stock/<sku>``, ``GET /address/<order>``, ``GET /health``.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Ninety seconds of every six minutes, the first after one minute: soon enough for who has just started it.
OUTAGE_EVERY_SECONDS, OUTAGE_FROM_SECONDS, OUTAGE_TO_SECONDS = 360, 60, 150
HANG_SECONDS = 60
_LARGEST_BYTES = 65_536
Charge = Callable[[str, int], str]
Reply = tuple[int, dict[str, Any]]


def is_outage(uptime_seconds: float) -> bool:
    """Return whether the stock service is down ``uptime_seconds`` after its start."""
    return OUTAGE_FROM_SECONDS <= uptime_seconds % OUTAGE_EVERY_SECONDS < OUTAGE_TO_SECONDS


class Provider(ThreadingHTTPServer):
    """The server. ``charge(key, cents)`` keeps a charge and returns its id, the same for the same key."""

    daemon_threads = True

    def __init__(self, host: str, port: int, charge: Charge) -> None:
        super().__init__((host, port), _Handler)
        self.charge = charge
        self.opened_at = time.monotonic()
        self.closing = threading.Event()
        self._hung: set[int] = set()

    def stock(self, sku: str) -> Reply:
        """Return how many there are, or 503 during an outage."""
        if is_outage(time.monotonic() - self.opened_at):
            return 503, {"error": "The stock service is down for a while."}
        return 200, {"sku": sku, "quantity": (zlib.crc32(sku.encode()) + int(time.time()) // 60) % 97}

    def address(self, order: int) -> Reply:
        """Return that the address is good; for one order in four, not before the second time it is asked."""
        if order % 4 == 1 and order not in self._hung:
            self._hung.add(order)
            self.closing.wait(HANG_SECONDS)
        return 200, {"order": order, "address": "good"}

    def pay(self, key: str, order: int, cents: int) -> Reply:
        """Charge once for each key; one order in six has a card that the bank declines."""
        if not key:
            return 400, {"error": "idempotency_key_missing"}
        if order % 6 == 5:
            return 402, {"error": "card_declined"}
        return 200, {"id": self.charge(key, cents), "cents": cents}


class _Handler(BaseHTTPRequestHandler):
    server: Provider
    timeout = 30

    def do_GET(self) -> None:
        _, _, rest = self.path.partition("/")
        noun, _, name = rest.partition("/")
        if noun == "health":
            self._reply(200, {"health": "good"})
        elif noun == "stock" and name:
            self._reply(*self.server.stock(name[:100]))
        elif noun == "address" and name.isdecimal():
            self._reply(*self.server.address(int(name)))
        else:
            self._reply(404, {"error": "not_found"})

    def do_POST(self) -> None:
        try:
            length = min(int(self.headers.get("Content-Length", 0)), _LARGEST_BYTES)
            given = json.loads(self.rfile.read(length))
            order, cents = int(given["order"]), int(given["cents"])
        except (ValueError, KeyError, TypeError):
            self._reply(400, {"error": "unreadable"})
            return
        self._reply(*self.server.pay(self.headers.get("Idempotency-Key", ""), order, cents))

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:
            # Who asked has been stopped meanwhile.
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the runs tell it."""
