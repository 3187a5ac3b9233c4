"""A worker that slept through its lease: whatever it still says finds no row. Group A of the table.

The last test shows why the fence is a number that only grows: a name alone would let the worker's first
attempt finish its second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from types import ModuleType
from typing import Any

import pytest

from tests.support import factories
from tests.support.factories import Connection, Held, rows
from tests.support.faults.deployment import LEASE_SECONDS, House
from tests.support.faults.fault_rows import Scale, fault
from tests.support.processes import Wakeboard, wait_until
from wakeboard.queue.engine import endings, fence
from wakeboard.runtime.duties.reaper import Reaper

Measured = Callable[[str], None]
AT_ONCE = 10
# What a stale answer may touch: a note on its own lost attempt. Nothing of this.
STANDS = """
SELECT r.id, r.status, r.lease_epoch, r.attempts, r.failures, r.finished_at,
    (SELECT jsonb_agg(to_jsonb(a) - 'refused_at' - 'refused_outcome' ORDER BY a.lease_epoch)
     FROM wakeboard.job_attempts AS a WHERE a.run_id = r.id)
FROM wakeboard.job_runs AS r WHERE r.id = ANY(%s) ORDER BY r.id
"""


def wait_until_leases_end(house: House, ids: Sequence[int]) -> None:
    """Wait until the lease of every one of the runs has ended, and nobody has taken it back."""
    ended = "SELECT count(*) FROM wakeboard.job_runs WHERE id = ANY(%s) AND locked_until < now()"
    wait_until(
        lambda: house.connection.execute(ended, (list(ids),)).fetchone() == (len(ids),),
        LEASE_SECONDS + 10,
        f"{len(ids)} leases end",
    )


def late_answers(house: House, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the lost attempts whose late answer was refused."""
    return rows(house.connection, "job_attempts", "refused_at IS NOT NULL AND run_id = ANY(%s)", list(ids))


def have_ended(house: House, ids: Sequence[int]) -> bool:
    """Whether the handlers of all of the runs have told that they ended."""
    return {line.run_id for line in house.truth("end")} >= set(ids)


def all_late_answers_are_noted(house: House, ids: Sequence[int]) -> bool:
    """Whether each of the runs has a lost attempt whose late answer was refused."""
    return len(late_answers(house, ids)) == len(ids)


def freeze_at_gate(house: House, worker: Wakeboard, job_type: str, gate: str) -> tuple[list[int], Any]:
    """Let ten runs stand before the gate, then freeze their worker until their leases have ended."""
    ids = house.enqueue_many(job_type, AT_ONCE, {"gate": gate})
    house.wait_until_started(ids)
    family = house.freeze(worker)
    wait_until_leases_end(house, ids)
    return ids, family


@fault(
    "F03",
    injected="worker and handlers frozen past the lease; another worker finishes their runs; thawed",
    expected="first attempts lost, their late answers change nothing, one effect a run",
)
def test_what_a_frozen_worker_says_later_is_refused(house: House, scale: Scale, measured: Measured) -> None:
    worker = house.worker(CONCURRENCY=AT_ONCE)
    everything: list[int] = []
    for number in range(scale.times(1, 5)):
        gate = house.folder / f"gate{number}"
        ids, family = freeze_at_gate(house, worker, ("effect", "gated")[number % 2], str(gate))
        gate.touch()
        house.tick()
        assert house.counts(ids) == {"succeeded": AT_ONCE}
        before = house.connection.execute(STANDS, (ids,)).fetchall()
        house.thaw(family)
        wait_until(partial(all_late_answers_are_noted, house, ids), 20, "late answers are noted")
        assert house.connection.execute(STANDS, (ids,)).fetchall() == before
        everything += ids
    refused = late_answers(house, everything)
    measured(
        f"{len(refused)} of {len(everything)} late answers refused, 0 accepted; "
        f"{len(house.truth('effect'))} effects"
    )
    assert {one["outcome"] for one in refused} == {"lost"}
    assert house.outcomes() == {"lost": len(everything), "succeeded": len(everything)}
    house.check()


@fault(
    "F03",
    injected="the same, and the SAME worker claims the runs again (ABA)",
    expected="the first attempts' answers are refused, the second attempts finish",
)
def test_a_worker_does_not_mistake_its_lost_attempt_for_its_new_one(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    worker = house.worker("--name", "steady", CONCURRENCY=AT_ONCE)
    everything: list[int] = []
    for number in range(scale.times(1, 5)):
        gate = house.folder / f"gate{number}"
        ids, family = freeze_at_gate(house, worker, ("gated", "effect")[number % 2], str(gate))
        reap(house.connection)
        gate.touch()
        if number % 2 == 0 and chance.random() < 0.7:
            # The first attempts end before their supervisor wakes: their answers lie in its sockets.
            house.thaw(family[1:])
            wait_until(partial(have_ended, house, ids), 10, "the first attempts have ended")
        house.thaw(family)
        house.settle(30)
        everything += ids
    attempts = rows(house.connection, "job_attempts", order="run_id, lease_epoch")
    wrong = [one for one in attempts if one["outcome"] == "succeeded" and one["result"] == 1]
    measured(
        f"{len(everything)} runs claimed twice by one worker, "
        f"{len(late_answers(house, everything))} late answers refused, {len(wrong)} accepted"
    )
    assert not wrong, "a first attempt's answer finished the second"
    assert len({one["worker_id"] for one in attempts}) == 1
    assert house.outcomes() == {"lost": len(everything), "succeeded": len(everything)}
    house.check()


def reap(connection: Connection) -> None:
    """Take back ended leases as another worker's reaper would."""
    Reaper(lease_seconds=LEASE_SECONDS, heartbeat_seconds=LEASE_SECONDS / 3, waits_first=False).step(
        connection
    )


def a_run_lost_and_claimed_again(connection: Connection) -> tuple[Held, Held]:
    """Let one worker claim a run, lose it to the reaper and claim it again; return what it held each time."""
    factories.a_type(connection)
    run_id = factories.a_run(connection)
    (first,) = factories.claim(connection)
    factories.end_lease(connection, run_id)
    reap(connection)
    factories.make_due(connection, run_id)
    (second,) = factories.claim(connection)
    assert second.lease_epoch > first.lease_epoch
    return first.held, second.held


def fence_by_name_alone(monkeypatch: pytest.MonkeyPatch, room: ModuleType, name: str) -> None:
    """Weaken an engine statement to what it would be if the owner's name were the whole fence."""
    statement: str = getattr(room, name)
    weakened = statement.replace("r.lease_epoch = a.epoch AND r.locked_by = $1", "r.locked_by = $1")
    assert weakened != statement
    monkeypatch.setattr(room, name, weakened)


def test_the_epoch_refuses_an_answer_that_the_name_alone_would_accept(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = a_run_lost_and_claimed_again(connection)
    assert factories.succeed(connection, first) == []
    assert factories.status(connection, second[0]) == "running"
    fence_by_name_alone(monkeypatch, endings, "SUCCEED")
    assert factories.succeed(connection, first) == [first[0]], "the first attempt would finish the second"


def test_the_epoch_refuses_a_renewal_that_the_name_alone_would_accept(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = a_run_lost_and_claimed_again(connection)
    assert factories.renew(connection, first) == {}
    assert factories.renew(connection, second) == {second[0]: False}
    fence_by_name_alone(monkeypatch, fence, "RENEW")
    assert factories.renew(connection, first) == {first[0]: False}, "the lost attempt would keep the lease"
