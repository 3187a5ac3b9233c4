"""From the commit of an enqueue to the start of its handler, by an idle worker.

    benchmarks/run latency [--runs 300] [--rounds 3]

With NOTIFY, and by the poll alone. The handler sends the time of its start to a socket; both ends read the
monotonic clock of the machine. The time of the commit is taken when its answer has come. A pause between two
runs lets all processes fall idle. Peers are measured beside it, with NOTIFY too, their handlers in their own
process; jobs are enqueued with the statement that their own library sends.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from time import monotonic_ns, sleep

import psycopg

from benchmarks import bench, programs
from benchmarks.peer_programs import PEERS, Peer, program, run_peer
from wakeboard import enqueue

PAUSE_SECONDS = 0.03
PATIENCE_SECONDS = 20.0
WARM_UP = 20
Enqueue = Callable[[psycopg.Connection], object]


@contextmanager
def start_socket(folder: Path) -> Iterator[tuple[socket.socket, str]]:
    """Yield a socket to which handlers send the time of their start, and its address."""
    address = folder / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(address))
        opened.settimeout(PATIENCE_SECONDS)
        yield opened, str(address)
    address.unlink()


def measure_delays(url: str, starts: socket.socket, enqueue_one: Enqueue, runs: int) -> list[float]:
    """Return the milliseconds from each commit to its handler's start; the first ones warm up."""
    found, first = [], min(WARM_UP, runs)
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(runs + first):
            sleep(PAUSE_SECONDS)
            enqueue_one(connection)
            committed_ns = monotonic_ns()
            found.append((int(starts.recv(64)) - committed_ns) / 1e6)
    return found[first:]


def measure_poll(url: str, folder: Path, runs: int) -> list[float]:
    """Measure a worker of ours without NOTIFY."""
    with bench.without_triggers(url):
        return measure_wakeboard(url, folder, runs)


def measure_wakeboard(url: str, folder: Path, runs: int) -> list[float]:
    """Measure a worker of ours with its default settings."""
    with start_socket(folder) as (starts, address):
        environment = bench.environment(url) | {"START_SOCKET": address}
        command = [sys.executable, "-m", "wakeboard", "worker", "--app", "latency_app"]
        with programs.running(command, environment, folder / "log"):
            return measure_delays(url, starts, lambda connection: enqueue(connection, "report_start"), runs)


def measure_peer(url: str, folder: Path, runs: int, peer: Peer) -> list[float]:
    """Measure a worker of a peer's."""
    (prepared,) = run_peer(peer, url, folder / "log", "prepare", 0)
    with (
        start_socket(folder) as (starts, address),
        programs.running(program(peer, url, "serve", address), {}, folder / "log"),
    ):
        return measure_delays(url, starts, lambda connection: connection.execute(prepared["enqueue"]), runs)


def print_times(title: str, found: dict[str, list[float]]) -> None:
    """Print p50, p95, p99 and the largest of each case."""
    print(f"### {title}\n")
    print("| milliseconds | p50 | p95 | p99 | largest |\n|---|--:|--:|--:|--:|")
    for name, values in found.items():
        cuts = quantiles(values, n=100, method="inclusive")
        print(f"| {name} | {cuts[49]:.2f} | {cuts[94]:.2f} | {cuts[98]:.2f} | {max(values):.2f} |")


def main() -> None:
    """Measure in turns and print the table."""
    chosen = bench.options(__doc__ or "", runs=300, rounds=3)
    with bench.server() as (url, folder):
        cases: dict[str, Callable[[], Sequence[float]]] = {
            "Wakeboard, NOTIFY": partial(measure_wakeboard, url, folder, chosen.runs),
            **{
                f"{peer.title}, NOTIFY": partial(measure_peer, url, folder, chosen.runs, peer)
                for peer in PEERS
            },
            "Wakeboard, the poll alone (2 s)": partial(measure_poll, url, folder, 10),
        }
        found: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(chosen.rounds):
            for name, case in cases.items():
                found[name] += case()
                bench.say(f"round {number + 1}: {name}")
        print_times(f"Pick-up by an idle worker, {chosen.rounds} rounds of {chosen.runs:,} runs", found)
        print(f"\n{bench.machine(url)}\n")


if __name__ == "__main__":
    main()
