"""The dead man's switch: WAKEBOARD_HEARTBEAT_URL is called each minute while every loop is well.

Over all processes together once a minute: whoever moves ``installation.pinged_at`` calls. The call is made on
a thread of its own and its answer written at the next step, so a slow receiver holds nobody up.
"""

from __future__ import annotations

import threading
from typing import Any

import psycopg

from worker.liveness import is_abandoned, late_loops

EVERY_SECONDS = 58
Connection = psycopg.Connection[Any]
TURN = f"""
UPDATE wakeboard.installation SET pinged_at = now()
WHERE pinged_at IS NULL OR pinged_at < now() - interval '{EVERY_SECONDS} seconds' RETURNING id
"""
ANSWERED = "UPDATE wakeboard.installation SET ping_error = %s WHERE ping_error IS DISTINCT FROM %s"


class Heartbeat:
    """The calls of one process to ``url``; None does nothing."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._calling: threading.Thread | None = None
        self._error: str | None = None

    def step(self, connection: Connection) -> None:
        """Note how the last call went; make the next when it is time and every loop is well."""
        if self._url is None or (self._calling is not None and self._calling.is_alive()):
            return
        if self._calling is not None:
            self._calling = None
            connection.execute(ANSWERED, (self._error, self._error))
        if late_loops(connection) or is_abandoned(connection):
            return
        if connection.execute(TURN.encode()).fetchone() is not None:
            self._calling = threading.Thread(target=self._call, name="heartbeat", daemon=True)
            self._calling.start()

    def _call(self) -> None:
        from worker.alerts.channels import NotSent, call, host_of

        assert self._url is not None
        try:
            status = call(self._url)
            self._error = None if 200 <= status < 300 else f"{host_of(self._url)} answered {status}."
        except NotSent as failure:
            self._error = str(failure)
