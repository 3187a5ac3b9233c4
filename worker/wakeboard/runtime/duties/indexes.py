"""The indexes duty: checks whether a pass over the indexes is due, and makes it on a thread of its own.

A rebuild takes seconds to minutes, for which the thread of the duties must not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress

import psycopg

from wakeboard.config import log
from wakeboard.core.text.sanitize import describe_error
from wakeboard.database.db import DatabaseError, is_pooled
from wakeboard.maintenance.indexes import rebuild, state
from wakeboard.maintenance.indexes.bloat import FLOOR_BYTES

INDEXES_SECONDS = 300.0
# A worker that ends has hardly time; what the server still builds then, the next pass finds.
STOP_SECONDS = 0.3


class Indexes:
    """The duty of one process. The first worker that finds a pass due makes it for all."""

    def __init__(self, url: str, *, floor_bytes: int = FLOOR_BYTES) -> None:
        self._url = url
        self._floor_bytes = floor_bytes
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: psycopg.Connection | None = None
        self._failure: BaseException | None = None

    @property
    def is_running(self) -> bool:
        """Whether this process makes a pass."""
        return self._thread is not None and self._thread.is_alive()

    def step(self, connection: psycopg.Connection) -> Mapping[str, object]:
        """Start a pass if one is due; return the result of the last one.

        Raises RuntimeError, once, when an unexpected error ended the last pass in this process.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise RuntimeError(
                f"A pass over the indexes ended by an error: {describe_error(failure)}"
            ) from failure
        last, is_due = state.read(connection)
        # Through a pooler no index can be built concurrently: that is left to other workers.
        may_start = is_due and not self.is_running and not is_pooled(connection)
        if may_start and (current := state.begin(connection)) is not None:
            self._thread = threading.Thread(target=self._run, args=(current,), name="indexes", daemon=True)
            self._thread.start()
        return last.summary()

    def stop(self) -> None:
        """End a pass under way. The next one, in any worker, drops what is half built."""
        self._stopping.set()
        thread, connection = self._thread, self._connection
        if thread is None or not thread.is_alive():
            return
        if connection is not None:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=STOP_SECONDS)
        thread.join(STOP_SECONDS)

    def _run(self, current: state.RebuildPass) -> None:
        try:
            with rebuild.open_connection(self._url) as self._connection:
                rebuild.make_pass(
                    self._connection, current, pause=self._stopping.wait, floor_bytes=self._floor_bytes
                )
        except (DatabaseError, psycopg.Error) as failure:
            if not self._stopping.is_set():
                log.warn("The indexes could not be looked at; the next pass is in half an hour.",
                         error=str(failure).strip()[:300])  # fmt: skip
        except BaseException as failure:
            self._failure = failure
        finally:
            self._connection = None
