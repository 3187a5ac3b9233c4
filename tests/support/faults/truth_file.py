"""The truth file: what the handlers really did, told outside of the product.

One line is one append of less than a page, so lines of several processes never mix. The handlers write with
``tell`` and so must not import anything but this, the standard library and the product's front door.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

PLACE = "TRUTH"


class Told(Protocol):
    """What a handler knows of its run."""

    @property
    def run_id(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def job_type(self) -> str: ...
    @property
    def payload(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Line:
    """One line: ``word`` is start, end, effect or another; ``at`` is in seconds since boot."""

    word: str
    run_id: int
    attempt: int
    pid: int
    at: float
    job_type: str
    payload_hash: str


def hash_of(payload: object) -> str:
    """Return the hash of a payload's canonical JSON."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def now() -> float:
    """Return seconds since boot, the clock of the file."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def tell(word: str, run: Told) -> None:
    """Append a line to the file that the environment names."""
    told = f"{run.run_id} {run.attempt} {os.getpid()} {now():.6f} {run.job_type} {hash_of(run.payload)}"
    descriptor = os.open(os.environ[PLACE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{word} {told}\n".encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> list[Line]:
    """Return the lines in the order in which they were written."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        Line(word, int(run), int(attempt), int(pid), float(at), job_type, payload)
        for word, run, attempt, pid, at, job_type, payload in (line.split() for line in lines)
    ]
