"""An app whose import opens a connection."""

from __future__ import annotations

import socket
import time

from wakeboard import Context, job

_listener = socket.create_server(("127.0.0.1", 0))
CONNECTION = socket.create_connection(_listener.getsockname())


@job("lone")
def lone(ctx: Context) -> str:
    """Answer."""
    return "alone"


@job("lone_wait")
def lone_wait(ctx: Context) -> None:
    """Wait."""
    time.sleep(600)
