"""The dead man's switch: calls WAKEBOARD_HEARTBEAT_URL each minute while every loop is on time.

All processes together call once a minute: the one that moves ``installation.pinged_at`` calls. A call may be
lost; the next one comes in a minute. A call runs in a thread of its own, and its result is written at the
next step, so a slow receiver delays nobody. A call that hangs (in the resolver, which has no timeout of
ours) is given up.
"""

from __future__ import annotations

from threading import Thread
from time import monotonic

from psycopg import Connection

from wakeboard.config import log
from wakeboard.core.text.sanitize import describe_error
from wakeboard.core.time.clock_skew import is_before
from wakeboard.reporting.heartbeats import is_abandoned, late_loops

TIMEOUT_SECONDS = 20.0
EVERY_SECONDS = 58
CLAIM = f"""
UPDATE wakeboard.installation SET pinged_at = now()
WHERE pinged_at IS NULL OR {is_before("pinged_at", EVERY_SECONDS)} RETURNING id
"""
RECORD = "UPDATE wakeboard.installation SET ping_error = %s WHERE ping_error IS DISTINCT FROM %s"


class Heartbeat:
    """The calls of one process to ``url``; None does nothing."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._call: HeartbeatCall | None = None

    def step(self, connection: Connection) -> None:
        """Write the result of the last call; begin the next when it is time and every loop is on time."""
        if self._url is None or (self._call is not None and not self._call.has_ended):
            return
        if self._call is not None:
            error, self._call = self._call.error, None
            if error is not None:
                log.warn("The heartbeat call failed.", error=error)
            connection.execute(RECORD, (error, error))
        if late_loops(connection) or is_abandoned(connection):
            return
        if connection.execute(CLAIM.encode()).fetchone() is not None:
            self._call = HeartbeatCall(self._url)


class HeartbeatCall:
    """One call, in a thread that begins at once. ``error`` says why it failed; None when it succeeded."""

    def __init__(self, url: str) -> None:
        self.error: str | None = f"The call took longer than {TIMEOUT_SECONDS:g} s and was given up."
        self._url, self._started_at = url, monotonic()
        self._thread = Thread(target=self._run, name="wakeboard heartbeat call", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether the call was answered, failed or took too long."""
        return not self._thread.is_alive() or monotonic() - self._started_at > TIMEOUT_SECONDS

    def _run(self) -> None:
        # Loaded by the first call: a worker without this setting needs no HTTP client.
        from wakeboard.alerts.channels import NotSent, call, host_of

        try:
            status = call(self._url)
        except NotSent as failure:
            self.error = str(failure)
        except Exception as failure:
            self.error = describe_error(failure)
        else:
            is_good = 200 <= status < 300
            self.error = None if is_good else f"{host_of(self._url)} answered {status}."
