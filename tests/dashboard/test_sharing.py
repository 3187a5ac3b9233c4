"""New connections go to the process that has fewest, and to whoever is there when that one does not come."""

from __future__ import annotations

from time import sleep

from wakeboard_dashboard.server import sharing
from wakeboard_dashboard.server.sharing import PATIENCE_SECONDS, Share


def test_a_connection_is_left_for_the_process_that_has_fewer() -> None:
    memory = sharing.shared_memory()
    one, other = Share(memory, 1), Share(memory, 2)
    one.tell(3)
    other.tell(1)
    assert one.leaves_it(3) and not other.leaves_it(1)
    other.tell(3)
    assert not one.leaves_it(3)


def test_a_process_that_does_not_come_is_not_waited_for() -> None:
    memory = sharing.shared_memory()
    Share(memory, 2).tell(0)
    one = Share(memory, 1)
    assert one.leaves_it(1)
    sleep(PATIENCE_SECONDS * 2)
    assert not one.leaves_it(1)


def test_a_process_that_is_gone_is_left_nothing() -> None:
    memory = sharing.shared_memory()
    Share(memory, 2).tell(0)
    sharing.leave(memory, 2)
    assert not Share(memory, 1).leaves_it(1)
