"""An app whose import starts a thread."""

from __future__ import annotations

import threading
import time

from wakeboard import Context, job


def _idle() -> None:
    time.sleep(600)


threading.Thread(target=_idle, daemon=True).start()


@job("lone")
def lone(ctx: Context) -> str:
    """Answer."""
    return "alone"


@job("lone_wait")
def lone_wait(ctx: Context) -> None:
    """Wait."""
    time.sleep(600)
