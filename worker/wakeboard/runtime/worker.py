"""What identifies one worker process, and the settings that its parts share."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process, as its row in ``workers`` shows it. Durations are in seconds.

    ``is_tick``: it ends when no work is left.
    """

    id: str
    name: str | None = None
    concurrency: int = 2
    lease_seconds: float = 30.0
    heartbeat_seconds: float = 10.0
    poll_seconds: float = 2.0
    is_tick: bool = False


def new_worker_id(name: str | None) -> str:
    """Return an id for this process. It is never used twice, so an answer of an earlier process is
    refused."""
    return f"{(name or socket.gethostname())[:60]}-{secrets.token_hex(4)}"
