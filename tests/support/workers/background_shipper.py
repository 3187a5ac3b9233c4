"""A small library of the shape that error reporters, log shippers and exporters of metrics have.

What is captured goes into a queue; a daemon thread, started by the first capture in each process, delivers
it; at the end of the program `atexit` waits for the queue. Each delivery is a line of the file SHIPPED.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from pathlib import Path

DELIVERY_SECONDS = 0.02
FLUSH_SECONDS = 2.0


class Shipper:
    """One of them for each program."""

    def __init__(self) -> None:
        self._queue: queue.Queue[str] = queue.Queue()
        self._pid = 0
        self._kept: list[str] = []
        atexit.register(self.flush)

    def capture(self, text: str) -> None:
        """Have `text` delivered soon."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            threading.Thread(target=self._deliver, daemon=True).start()
        self._queue.put(text)

    def keep(self, text: str) -> None:
        """Have `text` delivered at the end of the program, without a thread."""
        self._kept.append(text)

    def flush(self) -> None:
        """Deliver what is kept, and wait until all is delivered."""
        for text in self._kept:
            self._queue.put(text)
        if self._kept and self._pid != os.getpid():
            threading.Thread(target=self._deliver, daemon=True).start()
        end = time.monotonic() + FLUSH_SECONDS
        while self._queue.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.005)

    def _deliver(self) -> None:
        while True:
            text = self._queue.get()
            time.sleep(DELIVERY_SECONDS)
            write(text)
            self._queue.task_done()


def write(text: str) -> None:
    """Add a line to the file that the environment names."""
    with Path(os.environ["SHIPPED"]).open("a") as file:
        file.write(f"{text}\n")


shipper = Shipper()
