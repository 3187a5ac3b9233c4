"""The command line of a peer's program: a verb, and an answer of JSON in one line.

    python NAME_peer.py URL prepare JOBS        its tables, emptied, with so many no-op jobs, analyzed
    python NAME_peer.py URL drain AHEAD         work them off, so many at once
    python NAME_peer.py URL serve SOCKET        stay, and send the time of each start to a datagram socket
    python NAME_peer.py URL singly SECONDS      enqueue one by one for so long, each with its own commit
    python NAME_peer.py URL bulk JOBS           enqueue so many with a key each, in its quickest way

After ``prepare`` and ``drain`` more may stand, as ``types=20``, for a peer that knows of it:

    types     jobs of so many kinds, t0000 and so on, in turns; 0: of one kind, called noop
    limit     so many of a kind run at once at most; 0: any number
    lead      the jobs are due in so many milliseconds
    threads   jobs of ``mixed_app`` sleep in so many threads; -1: all that are in hand await at once
    writes    each job writes a row, on one of so many connections
    fails     1: each job fails for good

It runs in the peer's own environment, so it imports nothing of ours. Times are in nanoseconds on the
monotonic clock of the machine. ``prepare`` also tells the statement that enqueues one no-op job.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Awaitable, Callable
from time import monotonic_ns, perf_counter
from typing import Any

import uvloop

Answer = dict[str, Any]
Verb = Callable[..., Awaitable[Answer]]
AT_ONCE = 5_000
# What a run of ``mixed_app`` takes, in seconds: nine of ten kinds are quick.
QUICK_SECONDS, SLOW_SECONDS = 0.001, 0.2


def answer(prepare: Verb, drain: Verb, serve: Verb, singly: Verb, bulk: Verb) -> None:
    """Do what the command line says, and print what came of it."""
    url, verb, argument, *options = sys.argv[1:]
    verbs = {"prepare": prepare, "drain": drain, "serve": serve, "singly": singly, "bulk": bulk}
    value = argument if verb == "serve" else int(argument)
    how = {name: int(number) for name, _, number in (option.partition("=") for option in options)}
    print(json.dumps(uvloop.run(_await(verbs[verb](url, value, **how)))))


async def _await(verb: Awaitable[Answer]) -> Answer:
    return await verb


def kinds(types: int) -> list[str]:
    """Return the names of so many kinds of jobs."""
    return [f"t{number:04}" for number in range(types)] or ["noop"]


def is_slow(kind: str) -> bool:
    """Return whether a kind of ``mixed_app`` is a slow one: one of ten is."""
    return kind.endswith("9")


def parts(jobs: int) -> list[range]:
    """Return the numbers of ``jobs`` in parts that fit into one call."""
    return [range(first, min(first + AT_ONCE, jobs)) for first in range(0, jobs, AT_ONCE)]


def drained(starts: list[int], waits: list[float] | None = None) -> Answer:
    """Tell how many ran, when the first began, that the last was written just now, and waits in ms."""
    first_ns = min(starts, default=0)
    return {"runs": len(starts), "first_ns": first_ns, "last_ns": monotonic_ns(), "waits": waits or []}


async def one_by_one(seconds: int, enqueue: Callable[[int], Awaitable[object]]) -> Answer:
    """Call ``enqueue`` for so long; tell how often."""
    began, count = perf_counter(), 0
    while perf_counter() - began < seconds:
        await enqueue(count)
        count += 1
    return {"runs": count}


def start_sender(address: str) -> Callable[[], object]:
    """Return a function that a handler calls first: it sends the time to the socket at ``address``."""
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.connect(address)
    return lambda: sender.send(b"%d" % monotonic_ns())
