"""Pages of one process take turns: two at once, who came first first, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, sleep

from dashboard.turns import Turns


def begin(turns: Turns, name: str, done: list[str]) -> threading.Thread:
    """Start a page that waits for its turn and then says its name; return when it waits."""
    before = len(turns)

    def page() -> None:
        turns.take()
        done.append(name)

    thread = threading.Thread(target=page)
    thread.start()
    wait_until(lambda: len(turns) > before or not thread.is_alive())
    return thread


def wait_until(holds: Callable[[], bool]) -> None:
    until = monotonic() + 30
    while not holds():
        assert monotonic() < until
        sleep(0.001)


def test_pages_go_on_in_the_order_they_came() -> None:
    turns, done = Turns(most=1, patience_seconds=60), list[str]()
    turns.take()
    threads = [begin(turns, name, done) for name in "abc"]
    assert done == []
    for number, thread in enumerate(threads, 1):
        turns.give_back()
        thread.join(30)
        assert done == list("abc")[:number]


def test_as_many_as_may_go_on_at_once() -> None:
    turns = Turns(most=2, patience_seconds=60)
    turns.take()
    turns.take()
    done: list[str] = []
    third = begin(turns, "third", done)
    assert len(turns) == 1 and done == []
    turns.give_back()
    third.join(30)
    assert done == ["third"]


def test_who_waited_long_goes_on_beside_a_slow_page() -> None:
    turns, done = Turns(most=1, patience_seconds=0.05), list[str]()
    turns.take()
    begin(turns, "impatient", done).join(30)
    assert done == ["impatient"]
    # Both give back, and one turn is free again.
    turns.give_back()
    next_one = begin(turns, "next", done)
    turns.give_back()
    next_one.join(30)
    assert done == ["impatient", "next"] and len(turns) == 0
