"""What a worker claims next: what its slots can take, ahead of need only what is quick and may be retried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan

import pytest

from wakeboard.queue.engine.claims import LOCK_LIMIT, ClaimedRow
from wakeboard.runtime.loop.channel import Transaction, array
from wakeboard.runtime.loop.claim_batch import WINDOW, ClaimBatch, ClaimResult, windows
from wakeboard.runtime.loop.claim_cursor import ClaimCursor
from wakeboard.runtime.loop.claim_planner import (
    CHARACTERS_AHEAD,
    MOST_IN_FLIGHT,
    SIZES,
    ClaimPlan,
    ClaimPlanner,
    Load,
)
from wakeboard.runtime.loop.ended_attempt import plain_success
from wakeboard.runtime.loop.in_flight import RunInFlight, run_from_row
from wakeboard.runtime.worker import Worker

POLICY = {"timeout_seconds": 300.0, "lease_seconds": None, "backoff": "fixed 1s", "memory_mb": None}


def claims(*names: str, slots: int = 2, max_attempts: int = 10) -> ClaimPlanner:
    made = ClaimPlanner(slots, has_more=True)
    made.set_types([POLICY | {"name": name, "max_attempts": max_attempts} for name in names])
    return made


def held(made: ClaimPlanner, job_type: str, most: int | None = None) -> RunInFlight:
    row = claimed(job_type, 1)._replace(max_attempts=most)
    return run_from_row(row, made.policies, worker_id="w", lease_seconds=30, leased_ns=0)


def learn_quick(made: ClaimPlanner, job_type: str, most: int | None = None) -> None:
    for _ in range(300):
        made.observe(held(made, job_type, most), 0.001)
    made.count_written(300)


def claimed(job_type: str, run_id: int, run_at: str = "2026-01-01 00:00:00+00") -> ClaimedRow:
    """Return a row as a claim brings it."""
    return ClaimedRow(
        run_id, 1, 1, 0, job_type, "{}", None, None, None, "2026-01-01", None, None, None, 2, run_at
    )


def loads(*outstanding: int, slow: Sequence[int] = ()) -> list[Load]:
    return [Load(count, count if number in slow else 0) for number, count in enumerate(outstanding)]


def test_a_new_type_is_claimed_for_free_slots_alone() -> None:
    made = claims("mail")
    plan = made.plan(loads(0, 0))
    assert plan is not None
    assert (plan.limit, list(plan.types)) == (2, ["mail"])
    assert made.plan(loads(1, 1, slow=(0, 1))) is None


@pytest.mark.parametrize("others", [("mail",), ("mail", "report")])
def test_runs_that_end_together_teach_what_they_teach_one_by_one(others: Sequence[str]) -> None:
    singly, together = claims("mail", "report"), claims("mail", "report")
    durations = [0.001 * (number % 30) for number in range(200)]
    ended = [
        plain_success(held(singly, others[number % len(others)], 1 if number % 50 == 7 else None), seconds, 0)
        for number, seconds in enumerate(durations)
    ]
    for one in ended:
        singly.observe(one.run, one.took_seconds)
    for first in range(0, len(ended), 25):
        together.observe_all(ended[first : first + 25])
    together.demand = singly.demand
    assert together == singly


def test_quick_runs_are_claimed_ahead_but_no_more_than_a_quarter_of_a_seconds_worth() -> None:
    made = claims("mail")
    learn_quick(made, "mail")
    plan = made.plan(loads(0, 0))
    assert plan is not None
    assert 2 < plan.limit <= 2 * 250
    assert made.plan(loads(250, 250)) is None


def test_a_worker_that_has_just_begun_soon_has_as_many_ahead_as_any() -> None:
    names = [f"type{number}" for number in range(20)]
    made, limits = claims(*names), []
    for _ in range(7):
        plan = made.plan(loads(0, 0))
        assert plan is not None
        limits.append(plan.limit)
        for number in range(plan.limit):
            made.observe(held(made, names[number % 20]), 0.00002)
        made.count_written(plan.limit)
    assert limits == [2, 8, 32, 150, 750, 750, 750], "whatever types they are of"


def test_of_large_payloads_few_are_claimed_ahead_until_they_are_small_again() -> None:
    made = claims("mail")
    learn_quick(made, "mail")
    usual = made.plan(loads(0, 0))
    heavy, light = claimed("mail", 1), claimed("mail", 2)
    heavy = (*heavy[:5], "x" * 1_000_000, *heavy[6:])
    made.observe_payloads([heavy, light])
    made.observe_payloads([heavy])
    plan = made.plan(loads(0, 0))
    assert usual is not None and plan is not None
    assert plan.limit <= CHARACTERS_AHEAD // 1_000_000 < usual.limit
    for _ in range(30):
        made.observe_payloads([light])
    again = made.plan(loads(0, 0))
    assert again is not None and again.limit == usual.limit
    made.observe_payloads([heavy])
    for _ in range(300):
        made.observe_payloads([])
    again = made.plan(loads(0, 0))
    assert again is not None and again.limit == usual.limit, "none came for a while"


def test_a_type_that_is_new_is_claimed_ahead_as_the_others_are() -> None:
    made = claims("mail", "report")
    learn_quick(made, "mail")
    plan = made.plan(loads(1, 1))
    assert plan is not None
    assert list(plan.types) == ["mail", "report"]


def test_without_a_backlog_nothing_is_asked_for_while_no_slot_is_free() -> None:
    made = claims("mail")
    learn_quick(made, "mail")
    made.has_more = False
    assert made.plan(loads(1, 1)) is None
    assert made.plan(loads(1, 0)) is not None


def test_a_free_slot_is_claimed_for_whatever_another_one_has_ahead() -> None:
    made = claims("mail")
    for _ in range(100):
        made.observe(held(made, "mail"), 0.019)
    made.count_written(100)
    plan = made.plan(loads(25, 0))
    assert plan is not None and plan.limit == 1


def test_a_run_that_goes_on_makes_its_type_slow_until_two_were_quick() -> None:
    made = claims("mail", "report")
    for name in ("mail", "report"):
        learn_quick(made, name)
    made.observe(held(made, "mail"), 60.0)
    plan = made.plan(loads(1, 1))
    assert plan is not None
    assert list(plan.types) == ["report"], "the others go on as before"
    made.observe(held(made, "mail"), 0.001)
    assert not made.is_quick("mail")
    made.observe(held(made, "mail"), 0.001)
    assert made.is_quick("mail")


def test_more_is_claimed_ahead_before_the_slots_run_dry_but_not_for_a_few() -> None:
    made = claims("mail")
    learn_quick(made, "mail")
    plan = made.plan(loads(120, 120))
    assert plan is not None
    assert plan.limit >= 200
    assert made.plan(loads(230, 230)) is None


def learn_very_quick(made: ClaimPlanner, job_type: str) -> None:
    for _ in range(1000):
        made.observe(held(made, job_type), 0.00002)
    made.count_written(1000)


def test_many_slots_have_no_more_ahead_together_than_two() -> None:
    two, many = claims("mail"), claims("mail", slots=12)
    for made in (two, many):
        learn_very_quick(made, "mail")
    assert two.plan(loads(760, 760)) is None
    assert many.plan(loads(*[130] * 12)) is None
    assert many.plan(loads(*[100] * 12)) is not None


def test_what_a_claim_brings_counts_before_the_slots_have_it() -> None:
    made = claims("mail")
    learn_very_quick(made, "mail")
    assert made.plan(loads(400, 400)) is not None
    assert made.plan(loads(400, 400), coming=750) is None
    plan = made.plan(loads(0, 0), coming=750)
    assert plan is not None
    assert plan.limit == 750, "ahead, and not for two slots that are free for a moment more"


def test_nothing_is_claimed_ahead_while_much_waits_to_be_written() -> None:
    made = claims("mail")
    learn_very_quick(made, "mail")
    assert made.plan(loads(1, 1), unwritten=1000) is not None
    assert made.plan(loads(1, 1), unwritten=MOST_IN_FLIGHT) is None


def test_nothing_is_claimed_for_free_slots_either_while_too_much_waits_to_be_written() -> None:
    made = claims("mail", "report")
    for name in ("mail", "report"):
        made.observe(held(made, name), 1.0)
    assert made.plan(loads(0, 0), unwritten=MOST_IN_FLIGHT - 1) is not None
    assert made.plan(loads(0, 0), unwritten=MOST_IN_FLIGHT) is None


def listed(made: ClaimPlanner) -> set[str]:
    """Return the types of which the next claim lists what has not begun."""
    plan = made.plan(loads(0, 0))
    assert plan is not None
    return set(plan.listed)


def test_after_one_run_with_a_single_try_those_of_its_type_are_listed_for_a_while() -> None:
    made = claims("mail")
    learn_quick(made, "mail")
    assert listed(made) == set()
    made.observe(held(made, "mail", 1), 0.001)
    for _ in range(100):
        made.observe(held(made, "mail"), 0.001)
    assert listed(made) == {"mail"}
    learn_quick(made, "mail")
    assert listed(made) == set()


def test_a_type_whose_runs_have_now_and_then_a_single_try_is_listed_all_the_time() -> None:
    made = claims("mail")
    for number in range(1000):
        made.observe(held(made, "mail", 1 if number % 50 == 0 else None), 0.001)
        assert listed(made) == {"mail"}


def test_nothing_quick_waits_behind_a_slow_run() -> None:
    made = claims("mail", "report")
    learn_quick(made, "mail")
    assert made.plan(loads(1, 1, slow=(0, 1))) is None


def test_a_type_whose_runs_take_twenty_milliseconds_is_slow() -> None:
    made = claims("mail")
    learn_quick(made, "mail")
    for _ in range(30):
        made.observe(held(made, "mail"), 0.021)
    assert not made.is_quick("mail")


@pytest.mark.parametrize("by", ["type", "run"])
def test_what_may_start_only_once_is_claimed_ahead_and_listed_while_it_is_quick(by: str) -> None:
    made = claims("mail", max_attempts=1 if by == "type" else 10)
    learn_quick(made, "mail", most=1 if by == "run" else None)
    assert made.is_quick("mail")
    assert listed(made) == {"mail"}
    for _ in range(30):
        made.observe(held(made, "mail", 1), 0.1)
    assert listed(made) == set(), "it is claimed for free slots, and begins at once"


def test_where_no_list_can_be_kept_nothing_with_a_single_try_is_claimed_ahead() -> None:
    made = claims("mail", max_attempts=1)
    learn_quick(made, "mail")
    assert made.pause_only_tries("mail")
    assert not made.is_quick("mail")
    assert listed(made) == set()


def test_where_it_takes_long_to_begin_what_is_listed_nothing_of_its_type_is_claimed_ahead() -> None:
    made = claims("mail", "report", max_attempts=1)
    learn_quick(made, "mail")
    learn_quick(made, "report")
    for _ in range(10):
        slow = held(made, "mail")
        slow.assignment = slow.assignment._replace(is_listed=True)
        made.observe(slow, 0.04)
    learn_quick(made, "mail")
    assert not made.is_quick("mail"), "unlisted they are quick, and they would be listed again"
    assert made.is_quick("report")


def test_every_claim_of_a_listed_type_lists_it_and_no_other() -> None:
    plan = ClaimPlan(
        ["mail", "send"], limit=2, limited=["charge"], round=1, listed=frozenset(["mail", "charge"])
    )
    script = ClaimBatch(plan, Worker("w1"), ClaimCursor()).script()
    text, values = next(script)
    assert "INTO wakeboard.unbegun_attempts" in text and values[-1] == array(["mail"])
    past_locks, values = script.send([])
    assert "INTO wakeboard.unbegun_attempts" in past_locks and values[-1] == array(["mail"])
    _, (limited, values) = script.send([])
    assert "INTO wakeboard.unbegun_attempts" in limited and values[-1] == array(["charge"])
    script = ClaimBatch(replace(plan, listed=frozenset(["other"])), Worker("w1"), ClaimCursor()).script()
    text, _ = next(script)
    assert "unbegun_attempts" not in text


def test_a_limited_type_is_asked_for_even_when_it_is_quick() -> None:
    made = claims("mail")
    learn_quick(made, "mail")
    made.limited_types = ["mail"]
    plan = made.plan(loads(0, 0))
    assert plan is not None
    assert list(plan.limited) == ["mail"]


def test_limited_types_get_their_turn_while_quick_ones_keep_every_slot_busy() -> None:
    made = claims("mail", "report")
    learn_quick(made, "mail")
    made.limited_types = ["report"]
    plans = [made.plan(loads(1, 1)) for _ in range(10)]
    asked = [plan for plan in plans if plan and plan.limited]
    assert [plan.oldest_first for plan in asked] == [False, True, False, True]


def test_more_are_claimed_of_a_quick_type_with_a_limit_than_slots_are_free() -> None:
    made = claims("mail", "report")
    learn_quick(made, "mail")
    made.limited_types = ["mail", "report"]
    made.count_written(1_000)
    plan = made.plan(loads(0, 0))
    assert plan is not None
    assert plan.limit == 2
    assert plan.limited_ahead["mail"] > 100, "its limit says how many"
    assert "report" not in plan.limited_ahead


def test_types_with_a_limit_come_first_while_they_are_over_in_a_moment_and_others_have_nothing() -> None:
    made = claims("mail", "report")
    made.limited_types, made.has_more = ["report"], True

    def turns() -> list[bool]:
        return [plan.unlimited_first for _ in range(16) if (plan := made.plan(loads(0, 0)))]

    assert turns() == [True, False] * 8
    made.has_more = False
    assert turns() == [True, False] * 8, "what is urgent must not wait for eight long runs"
    learn_quick(made, "report")
    assert turns().count(True) == 2, "now and then they are asked all the same"


def test_a_claim_for_a_free_slot_brings_quick_runs_ahead_with_it() -> None:
    made = claims("mail", "report")
    learn_quick(made, "mail")
    made.observe(held(made, "report"), 1.0)
    plan = made.plan(loads(20, 0))
    assert plan is not None
    assert (plan.limit, list(plan.types), list(plan.quick)) == (1, ["mail", "report"], ["mail"])
    assert plan.ahead > 100, "with claims for free slots alone there would never be anything ahead"


def test_what_is_claimed_ahead_leaves_out_slots_that_a_slow_run_was_claimed_for() -> None:
    plan = ClaimPlan(["mail", "report"], limit=2, quick=["mail"], ahead=200, slots=2)
    mail, report = claimed("mail", 1), claimed("report", 2)
    assert [plan.ahead_beside(rows) for rows in ([mail], [mail, report], [report, report])] == [200, 100, 0]


def test_nothing_is_claimed_ahead_when_the_free_slots_could_not_be_filled() -> None:
    plan = ClaimPlan(["mail", "report"], limit=2, quick=["mail"], ahead=200, slots=2, round=1)
    script = ClaimBatch(plan, Worker("w1"), ClaimCursor()).script()
    next(script)
    with pytest.raises(StopIteration) as ended:
        script.send([claimed("mail", 1)])
    assert not ended.value.value.is_full


def test_what_is_claimed_ahead_is_asked_of_quick_types_alone() -> None:
    plan = ClaimPlan(["mail", "report"], limit=1, quick=["mail"], ahead=200, slots=2, round=1)
    script = ClaimBatch(plan, Worker("w1"), ClaimCursor()).script()
    next(script)
    _, (types, *_) = script.send([claimed("mail", 1)])
    assert types == b"{mail}" or types == b'{"mail"}'


def test_one_claim_in_five_goes_by_age() -> None:
    made = claims("mail")
    plans = [made.plan(loads(0, 0)) for _ in range(20)]
    assert sum(bool(plan and plan.oldest_first) for plan in plans) == 4


def test_limits_are_of_few_sizes_and_never_more_than_wanted() -> None:
    for free in range(1, 40):
        plan = claims("mail", slots=free).plan(loads(*[0] * free))
        assert plan is not None
        assert plan.limit in SIZES
        assert plan.limit <= free


def test_every_type_is_asked_in_turn_when_there_are_many() -> None:
    names = [f"type{number:04d}" for number in range(1000)]
    firsts: set[str] = set()
    for round_ in range(-(-1000 // WINDOW)):
        asked = list(windows(names, round_))
        assert sorted(name for some in asked for name in some) == names
        assert max(map(len, asked)) == WINDOW
        firsts.update(asked[0])
    assert firsts == set(names), "each type comes first in its turn"


def test_a_timeout_without_an_end_is_bounded() -> None:
    made = claims("mail")
    head = (1, 1, 1, 0, "mail", "{}", None, None, None, "2026-01-01", None)
    for seconds in (inf, nan, 1e300):
        entry = run_from_row(
            (*head, seconds, None), made.policies, worker_id="w", lease_seconds=30, leased_ns=0
        )
        assert entry.assignment.timeout_seconds == 315_360_000


def round_with_a_row_at_once(lease_seconds: float) -> ClaimResult | Transaction:
    """Answer a round's first claim with a row; return what it hands over, or what it sends next."""
    plan = ClaimPlan(["send"], limit=4, limited=["charge", "refund"], round=1)
    script = ClaimBatch(plan, Worker("w1", lease_seconds=lease_seconds), ClaimCursor()).script()
    next(script)
    try:
        return Transaction(script.send([(1, 1)]))
    except StopIteration as ended:
        assert isinstance(ended.value, ClaimResult)
        return ended.value


def test_over_a_slow_link_a_round_hands_over_what_it_has_and_the_next_follows_at_once() -> None:
    # A lease so short that any answer is slow.
    found = round_with_a_row_at_once(lease_seconds=1e-6)
    assert isinstance(found, ClaimResult)
    assert (found.rows, found.is_full) == ([(1, 1)], True)
    assert found.sent_ns > 0


def test_over_a_fast_link_a_round_asks_for_the_limited_types_too() -> None:
    asked = round_with_a_row_at_once(lease_seconds=30)
    assert isinstance(asked, Transaction)
    assert asked[0] == (LOCK_LIMIT, (b"charge",))
