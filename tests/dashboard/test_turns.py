"""Pages of one process take turns: who came first first, and a slow one keeps nobody waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, sleep

from wakeboard_dashboard.server.turns import Turns


def begin(turns: Turns, page: Callable[[], object]) -> threading.Thread:
    """Start a page that waits for its turn; return when it waits."""
    before = len(turns)
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
    turns, done = Turns(most=1, longest_seconds=60), list[str]()
    taken = [turns.take()]

    def page(name: str) -> Callable[[], None]:
        def go_on() -> None:
            taken.append(turns.take())
            done.append(name)

        return go_on

    threads = [begin(turns, page(name)) for name in "abc"]
    assert done == []
    for number, thread in enumerate(threads, 1):
        turns.give_back(taken[-1])
        thread.join(30)
        assert done == list("abc")[:number]


def test_as_many_as_may_go_on_at_once() -> None:
    turns = Turns(most=2, longest_seconds=60)
    first, _second = turns.take(), turns.take()
    third = begin(turns, turns.take)
    assert len(turns) == 1 and third.is_alive()
    turns.give_back(first)
    third.join(30)
    assert not third.is_alive()


def test_a_slow_page_keeps_nobody_waiting_for_long() -> None:
    turns = Turns(most=1, longest_seconds=0.05)
    slow = turns.take()
    for _ in range(3):
        begin(turns, turns.take).join(30)
    assert len(turns) == 0
    # Its turn is over long since: that it ends frees nobody else's.
    longer = Turns(most=1, longest_seconds=60)
    fresh = longer.take()
    waits = begin(longer, longer.take)
    longer.give_back(slow)
    assert len(longer) == 1
    longer.give_back(fresh)
    waits.join(30)
