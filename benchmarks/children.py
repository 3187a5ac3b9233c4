"""How many no-op runs a second pass through two children, by how many are on their way at once. No database.

    benchmarks/run children [runs]

Prints runs per second, and the supervisor's CPU for one, by how many runs travel in one message and how many
each child holds.
"""

from __future__ import annotations

import os
import resource
import selectors
import sys
import time
from pathlib import Path

from wakeboard.core.process.assignment import Assignment
from wakeboard.runtime.processes.children import Children
from wakeboard.runtime.processes.protocol import AppTypes, AttemptEnd, SuccessBatch

SLOTS = 2
HERE = str(Path(__file__).resolve().parent)


def main() -> None:
    """Measure each shape once and print one line for it."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 40_000
    children = Children(SLOTS, app="noop_app", environment={"PYTHONPATH": HERE}, recycle_runs=10**9)
    selector = selectors.DefaultSelector()
    children.register(selector)
    children.start()
    try:
        while not any(isinstance(event, AppTypes) for event in children.collect()):
            selector.select(1)
        drain(children, selector, 2_000, 10, 20)
        for chunk, held in ((1, 1), (1, 8), (10, 60), (50, 150)):
            before = time.process_time()
            seconds = drain(children, selector, runs, chunk, held)
            supervisor = (time.process_time() - before) / runs * 1e6
            print(
                f"chunks of {chunk:2}, {held:3} outstanding per child: {runs / seconds:9,.0f} runs/s, "
                f"supervisor {supervisor:.1f} us a run"
            )
    finally:
        children.kill_all()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"children and template: {used.ru_utime + used.ru_stime:.1f} s of CPU; {os.cpu_count()} cores")


def drain(children: Children, selector: selectors.BaseSelector, runs: int, chunk: int, held: int) -> float:
    """Run `runs` no-ops, `held` outstanding per child, sent `chunk` at a time. Returns seconds."""
    began = time.perf_counter()
    sent = done = 0
    outstanding = [0] * SLOTS
    while done < runs:
        for slot in range(SLOTS):
            while sent < runs and outstanding[slot] + chunk <= held:
                children.send(slot, [assignment(number) for number in range(sent + 1, sent + chunk + 1)])
                outstanding[slot] += chunk
                sent += chunk
        selector.select(5)
        for event in children.collect():
            match event:
                case SuccessBatch(slot, attempts):
                    ended = len(attempts)
                case AttemptEnd(slot):
                    ended = 1
                case _:
                    raise SystemExit(f"Not a finished run: {event}")
            outstanding[slot] -= ended
            done += ended
    return time.perf_counter() - began


def assignment(number: int) -> Assignment:
    """Run `number` of the no-op type."""
    payload = '{"invoice_id": 812}'
    return Assignment(number, 1, 1, "noop", payload, None, None, None, None, 60.0, None, "benchmark")


if __name__ == "__main__":
    main()
