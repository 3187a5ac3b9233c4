"""The peers that stand beside ours in the tables: each a program in ``peers/``, in its own environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bench


@dataclass(frozen=True, slots=True)
class Peer:
    """Whom to ask: ``name`` in the names of its files, ``title`` in tables.

    ``ahead`` is how many jobs it has in hand at once where it drains: the quickest of what was tried.
    Where all others drain a thousand, it drains a thousand divided by ``fewer``.
    """

    name: str
    title: str
    ahead: int
    fewer: int = 1


# In hand at once: of 200, 500 and 1,000; of 100, 300, 1,000, 3,000 and 10,000; of 1, 5, 10, 20, 50 and 100.
PGQUEUER = Peer("pgqueuer", "PgQueuer", ahead=500)
PEERS = (
    PGQUEUER,
    Peer("chancy", "Chancy", ahead=3_000, fewer=4),
    Peer("procrastinate", "Procrastinate", ahead=20, fewer=20),
)


def fewer(jobs: int) -> str:
    """Say which peers are given fewer jobs a round, so that a round does not take minutes."""
    given = [f"{peer.title} {jobs // peer.fewer:,}" for peer in PEERS if peer.fewer > 1]
    return f"Slow peers are given fewer jobs a round: {', '.join(given)}."


def program(peer: Peer, url: str, verb: str, argument: object, **how: int) -> list[str | Path]:
    """Return the command that asks a peer; ``peers/command.py`` knows the verbs."""
    script, options = bench.PEERS / f"{peer.name}_peer.py", [f"{name}={value}" for name, value in how.items()]
    return [bench.peer(peer.name), script, bench.peer_url(url), verb, str(argument), *options]


def ask(
    peer: Peer, url: str, log: Path, verb: str, argument: object, processes: int = 1, **how: int
) -> list[dict[str, Any]]:
    """Ask so many of a peer's programs at once; return their answers. Raises SystemExit if one fails."""
    said = bench.together([program(peer, url, verb, argument, **how)] * processes, url, log)
    return [json.loads(text) for text in said]
