"""The peers that stand beside ours in the tables: each a program in ``peers/``, in its own environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from benchmarks import bench


class Answer(TypedDict, total=False):
    """An answer of ``peers/command.py``: times are in ns, waits in ms."""

    runs: int
    seconds: float
    enqueue: str
    first_ns: int
    last_ns: int
    waits: list[float]


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer: its ``name`` in the names of its files, its ``title`` in tables.

    ``ahead`` is how many jobs it has in hand at once where it drains: the quickest of what was tried.
    Where all others drain a thousand, it drains a thousand divided by ``divisor``.
    """

    name: str
    title: str
    ahead: int
    divisor: int = 1


# In hand at once: of 200, 500 and 1,000; of 100, 300, 1,000, 3,000 and 10,000; of 1, 5, 10, 20, 50 and 100.
PGQUEUER = Peer("pgqueuer", "PgQueuer", ahead=500)
PEERS = (
    PGQUEUER,
    Peer("chancy", "Chancy", ahead=3_000, divisor=4),
    Peer("procrastinate", "Procrastinate", ahead=20, divisor=20),
)


def fewer_jobs_line(jobs: int) -> str:
    """Return the line on the peers that get fewer jobs a round, so that a round does not take minutes."""
    given = [f"{peer.title} {jobs // peer.divisor:,}" for peer in PEERS if peer.divisor > 1]
    return f"Slow peers are given fewer jobs a round: {', '.join(given)}."


def program(peer: Peer, url: str, verb: str, argument: object, **how: int) -> list[str | Path]:
    """Return the command of a peer's program; ``peers/command.py`` describes the verbs."""
    script, options = bench.PEERS / f"{peer.name}_peer.py", [f"{name}={value}" for name, value in how.items()]
    return [bench.peer(peer.name), script, bench.peer_url(url), verb, str(argument), *options]


def run_peer(
    peer: Peer, url: str, log: Path, verb: str, argument: object, processes: int = 1, **how: int
) -> list[Answer]:
    """Run so many of a peer's programs at once; return their answers. Raises SystemExit if one fails."""
    outputs = bench.run_together([program(peer, url, verb, argument, **how)] * processes, url, log)
    return [json.loads(text) for text in outputs]
