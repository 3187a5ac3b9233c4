"""The dead man's switch: WAKEBOARD_HEARTBEAT_URL is called each minute while every loop is well.

Over all processes together once a minute: whoever moves ``installation.pinged_at`` calls. A call may be lost,
the next one comes in a minute: so it is a pool's, and its answer is written at the next step. A slow receiver
holds nobody up, and a call that hangs (in the resolver, where no timeout of ours reaches) is given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from wakeboard.core.outcome import Permanent
from wakeboard.core.time.clock_skew import is_before
from wakeboard.handlers.registry import JobType
from wakeboard.reporting.heartbeats import is_abandoned, late_loops

if TYPE_CHECKING:
    from wakeboard.handlers.context import Context
    from wakeboard.handlers.pool import Pool, Ticket

TIMEOUT_SECONDS, GRACE_SECONDS = 20.0, 5.0
EVERY_SECONDS = 58
Connection = psycopg.Connection[Any]
TURN = f"""
UPDATE wakeboard.installation SET pinged_at = now()
WHERE pinged_at IS NULL OR {is_before("pinged_at", EVERY_SECONDS)} RETURNING id
"""
ANSWERED = "UPDATE wakeboard.installation SET ping_error = %s WHERE ping_error IS DISTINCT FROM %s"


class Heartbeat:
    """The calls of one process to ``url``; None does nothing."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._pool: Pool | None = None
        self._last: Ticket | None = None

    def step(self, connection: Connection) -> None:
        """Note how the last call went; make the next when it is time and every loop is well."""
        if self._url is None or (self._last is not None and not self._last.has_ended):
            return
        if self._last is not None:
            error, self._last = self._last.last_error, None
            connection.execute(ANSWERED, (error, error))
        if late_loops(connection) or is_abandoned(connection):
            return
        if connection.execute(TURN.encode()).fetchone() is not None:
            self._last = self._calls().submit(CALL, {"url": self._url})

    def _calls(self) -> Pool:
        if self._pool is None:
            from wakeboard.handlers.pool import Pool

            self._pool = Pool(
                1,
                capacity=1,
                full="drop",
                grace_seconds=GRACE_SECONDS,
                name="heartbeat",
                log_every_move=False,
            )
        return self._pool


def _call(ctx: Context) -> None:
    from wakeboard.alerts.channels import call, host_of

    url = ctx.payload["url"]
    status = call(url)
    if not 200 <= status < 300:
        raise Permanent("heartbeat_refused", f"{host_of(url)} answered {status}.")


CALL = JobType("heartbeat", _call, max_attempts=1, timeout_seconds=TIMEOUT_SECONDS)
