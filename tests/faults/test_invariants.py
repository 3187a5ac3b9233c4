"""Each invariant, made to fail: a check that cannot fail proves nothing. And the rows' own machinery."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from tests.support.factories import Connection, a_definition, a_run, a_worker, an_attempt, from_now, insert
from tests.support.faults import invariants, truth_file
from tests.support.faults.deployment import House
from tests.support.faults.fault_rows import FaultRow, Scale, as_markdown, in_order
from tests.support.faults.invariants import Footprint
from tests.support.faults.result_table import as_text
from tests.support.faults.run_sampler import Sampler
from tests.support.faults.truth_file import Line
from tests.support.processes import ROOT, wait_until
from wakeboard.database import db

HASH = truth_file.hash_of({})
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def line(
    word: str, run_id: int, at: float = 0, *, attempt: int = 1, pid: int = 1, job_type: str = "mail"
) -> Line:
    return Line(word, run_id, attempt, pid, at, job_type, HASH)


def test_a_whole_run_violates_nothing(connection: Connection) -> None:
    run_id = a_run(connection, "succeeded")
    lines = [line("start", run_id, 1), line("end", run_id, 2)]
    told = invariants.check_invariants(connection, lines, {run_id: HASH}, limits={"mail": 1})
    assert told == invariants.i6_epochs_grow(connection) == []


def test_i1_tells_a_run_that_is_gone(connection: Connection) -> None:
    (told,) = invariants.i1_acknowledged_runs_end_once(connection, {77: HASH})
    assert told == "I1: run 77 was acknowledged and does not exist"


@pytest.mark.parametrize("status", ["queued", "running", "failed"])
def test_i1_tells_a_run_that_has_not_ended(connection: Connection, status: str) -> None:
    run_id = a_run(connection, status)
    (told,) = invariants.i1_acknowledged_runs_end_once(connection, {run_id: HASH})
    assert told == f"I1: run {run_id} has not ended, it is {status}"


def test_i1_tells_a_life_that_ended_twice(connection: Connection) -> None:
    run_id = a_run(connection, "succeeded")
    an_attempt(connection, run_id, attempt=2, lease_epoch=2, outcome="failed", error_code="late")
    (told,) = invariants.i1_acknowledged_runs_end_once(connection, {run_id: HASH})
    assert told == f"I1: run {run_id} ended 2 times in 1 lives"


def test_i1_allows_one_end_for_each_retry_of_a_person(connection: Connection) -> None:
    run_id = a_run(connection, "dead", attempts=1, failures=1)
    an_attempt(connection, run_id, attempt=2, lease_epoch=2, outcome="failed", error_code="smtp_down")
    assert invariants.i1_acknowledged_runs_end_once(connection, {run_id: HASH})
    audit(connection, "run.retry", run_id, before={"status": "dead"})
    assert invariants.i1_acknowledged_runs_end_once(connection, {run_id: HASH}) == []


def test_i1_tells_an_end_without_an_attempt(connection: Connection) -> None:
    run_id = a_run(connection, "succeeded")
    connection.execute("DELETE FROM wakeboard.job_attempts")
    (told,) = invariants.i1_acknowledged_runs_end_once(connection, {run_id: HASH})
    assert told == f"I1: run {run_id} is succeeded and no attempt says so"


def audit(
    connection: Connection, action: str, run_id: int, *, ago: str = "0 seconds", **columns: object
) -> None:
    values = {
        "actor": "olivia", "source": "web", "action": action, "target_type": "run",
        "target_id": str(run_id), "at": from_now(f"-{ago}"),
    } | columns  # fmt: skip
    insert(connection, "audit_log", values)


def an_effect(connection: Connection, run_id: int, status: str) -> None:
    insert(
        connection, "effects",
        {
            "scope": f"run:{run_id}", "key": "k", "run_id": run_id, "attempt": 1, "lease_epoch": 1,
            "status": status,
        },
    )  # fmt: skip


def test_i2_tells_an_effect_that_happened_twice(connection: Connection) -> None:
    an_effect(connection, 1, "done")
    lines = [line("effect", 1, 1), line("effect", 1, 2, attempt=2)]
    assert invariants.i2_effects_happen_once(connection, lines) == ["I2: run 1 took effect 2 times"]


def test_i2_tells_an_effect_that_the_ledger_forgot(connection: Connection) -> None:
    (told,) = invariants.i2_effects_happen_once(connection, [line("effect", 1)])
    assert told == "I2: run 1 took effect and the ledger does not know"


def test_i2_tells_an_effect_that_the_ledger_invented(connection: Connection) -> None:
    an_effect(connection, 1, "done")
    (told,) = invariants.i2_effects_happen_once(connection, [])
    assert told == "I2: the ledger says done of run 1, and nothing happened"


def test_i3_tells_a_run_that_succeeded_twice(connection: Connection) -> None:
    run_id = a_run(connection, "succeeded")
    an_attempt(
        connection, run_id, attempt=2, lease_epoch=2, started_at="-5 seconds", finished_at="-4 seconds"
    )
    assert invariants.i3_no_two_attempts_end_a_run(connection) == [f"I3: run {run_id} succeeded 2 times"]


def test_i3_tells_attempts_that_overlap(connection: Connection) -> None:
    an_attempt(connection, 1, outcome="released", started_at="-9 seconds", finished_at="-4 seconds")
    an_attempt(connection, 1, attempt=2, lease_epoch=2, started_at="-5 seconds", finished_at="-3 seconds")
    (told,) = invariants.i3_no_two_attempts_end_a_run(connection)
    assert told == "I3: run 1: attempts of epochs 1 and 2 overlap"


def test_i4_tells_a_start_that_was_not_counted(connection: Connection) -> None:
    run_id = a_run(connection, "succeeded")
    lines = [line("start", run_id, 1), line("start", run_id, 2)]
    assert invariants.i4_attempts_are_starts(connection, lines)
    assert invariants.i4_attempts_are_starts(connection, lines[:1]) == []


def test_i4_tells_an_attempt_that_was_charged_for_nothing(connection: Connection) -> None:
    run_id = a_run(connection, "succeeded")
    (told,) = invariants.i4_attempts_are_starts(connection, [])
    assert told == f"I4: run {run_id} has 1 attempts, 0 of them lost, and started 0 times"


def a_sampler(database: str, *, attended: bool = True, reclaim_seconds: float = 0) -> Sampler:
    return Sampler(database, reclaim_seconds=reclaim_seconds, is_attended=lambda: attended)


def test_i5_tells_a_run_that_outlives_its_lease(database: str, connection: Connection) -> None:
    run_id = a_run(connection, "running", locked_until="-1 minute")
    sampler = a_sampler(database)
    sampler.start()
    wait_until(lambda: sampler.violations, 10, "the sampler sees the run")
    assert sampler.stop() == [f"I5: run {run_id} still runs long after its lease"]


def test_i5_blames_nobody_while_every_worker_sleeps(database: str, connection: Connection) -> None:
    a_run(connection, "running", locked_until="-1 minute")
    sampler = a_sampler(database, attended=False)
    sampler.look(connection)
    sampler.look(connection)
    assert not sampler.violations


def test_i5_tells_that_nobody_looked(database: str) -> None:
    sampler = a_sampler(database)
    assert sampler.looks == 0
    sampler.start()
    (told,) = a_sampler_without_a_database(database).stop()
    sampler.stop()
    assert told.startswith("I5: nobody looked")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_i5_tells_that_the_sampler_died_after_a_look(database: str) -> None:
    answers = iter([True])
    sampler = Sampler(database, reclaim_seconds=0, is_attended=lambda: next(answers))
    sampler.start()
    wait_until(lambda: not sampler.is_looking, 10, "the sampler dies")
    assert sampler.looks == 1
    (told,) = sampler.stop()
    assert "died" in told


def a_sampler_without_a_database(database: str) -> Sampler:
    sampler = a_sampler(psycopg.conninfo.make_conninfo(database, dbname="nowhere"))
    sampler.start()
    return sampler


def test_i6_tells_an_epoch_that_fell(database: str, connection: Connection) -> None:
    run_id = a_run(connection, "running", lease_epoch=5)
    sampler = a_sampler(database)
    sampler.look(connection)
    connection.execute("UPDATE wakeboard.job_runs SET lease_epoch = 4")
    sampler.look(connection)
    assert f"I6: the epoch of run {run_id} fell from 5 to 4" in sampler.violations


def test_i6_tells_attempts_whose_epochs_do_not_grow(connection: Connection) -> None:
    an_attempt(connection, 1, attempt=1, lease_epoch=3, outcome="lost", finished_at="-9 seconds")
    an_attempt(connection, 1, attempt=2, lease_epoch=2, finished_at="-8 seconds", started_at="-9 seconds")
    assert invariants.i6_epochs_grow(connection) == ["I6: run 1 had the epochs [3, 2] in this order"]


def test_i6_tells_a_run_behind_its_attempts(connection: Connection) -> None:
    run_id = a_run(connection, "succeeded")
    connection.execute("UPDATE wakeboard.job_runs SET lease_epoch = 0")
    (told,) = invariants.i6_epochs_grow(connection)
    assert told == f"I6: run {run_id} has the epoch 0, its attempts reached 1"


def test_i7_tells_a_cancelled_run_that_succeeded(connection: Connection) -> None:
    run_id = a_run(connection, "succeeded")
    audit(connection, "run.cancel", run_id, ago="1 minute", after={"status": "cancelled"})
    assert invariants.i7_ends_are_final(connection) == [
        f"I7: run {run_id} was told to be cancelled and succeeded"
    ]
    audit(connection, "run.retry", run_id, ago="50 seconds", before={"status": "cancelled"})
    assert invariants.i7_ends_are_final(connection) == []


def test_i7_tells_a_succeeded_run_that_was_cancelled(connection: Connection) -> None:
    run_id = a_run(connection, "cancelled")
    an_attempt(connection, run_id)
    assert invariants.i7_ends_are_final(connection) == [f"I7: run {run_id} succeeded and is cancelled"]


def test_i10_tells_what_was_not_fired_what_was_not_wanted_and_what_was_fired_twice(
    connection: Connection,
) -> None:
    made = a_definition(connection)
    at = [NOON.replace(minute=minute) for minute in range(4)]
    for slot in (at[0], at[2], at[3]):
        a_run(connection, "succeeded", definition_id=made, scheduled_for=slot)
    insert(connection, "missed_fires", {"definition_id": made, "scheduled_for": at[2], "reason": "misfire"})
    assert invariants.i10_fires_are_kept_once(connection, {made: at[:3]}) == [
        f"I10: schedule {made} did not keep 2026-03-01 12:01:00",
        f"I10: schedule {made} fired 2026-03-01 12:03:00, which nobody wanted",
        f"I10: schedule {made} kept 2026-03-01 12:02:00 2 times",
    ]


def test_i11_tells_processes_files_and_sessions_that_are_left(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    mark = "a mark of this test"
    left = subprocess.Popen(["sleep", "600"], env={"HOUSE": mark})
    try:
        (tmp_path / "left").touch()
        with db.connect(database, name="wakeboard claim"):
            wait_until(lambda: invariants.marked(mark), 5, "the process has begun")
            told = invariants.i11_nothing_is_left(connection, mark, tmp_path)
    finally:
        left.kill()
        left.wait()
    assert [each.split(" is left")[0] for each in told] == [
        f"I11: process {left.pid}",
        "I11: a file",
        "I11: a database session",
    ]
    wait_until(lambda: not invariants.i11_nothing_is_left(connection, mark, tmp_path / "empty"), 5)


@pytest.mark.parametrize(
    ("after", "word"), [(Footprint(13, 0), "open files"), (Footprint(10, 30 * 2**20), "memory")]
)
def test_i12_tells_what_grew(after: Footprint, word: str) -> None:
    (told,) = invariants.i12_footprint_is_steady(Footprint(10, 0), after, runs=1000)
    assert word in told
    assert invariants.i12_footprint_is_steady(Footprint(10, 0), Footprint(12, 9 * 2**20), runs=1000) == []


def test_i13_tells_a_limit_that_was_exceeded() -> None:
    lines = [
        line("start", 1, 1, pid=1),
        line("start", 2, 2, pid=2),
        line("end", 1, 3),
        line("end", 2, 4, pid=2),
    ]
    (told,) = invariants.i13_limits_hold(lines, {"mail": 1})
    assert told == "I13: 2 runs of mail at once, where 1 may be"
    assert invariants.i13_limits_hold(lines, {"mail": 2}) == []


def test_i13_forgets_a_handler_that_died_when_its_attempt_was_told_to_be_over(connection: Connection) -> None:
    dead, later = a_run(connection, "cancelled"), a_run(connection, "queued")
    an_attempt(connection, dead, outcome="cancelled", finished_at="-1 minute", started_at="-2 minutes")
    at = truth_file.now()
    lines = [line("start", dead, at - 120), line("start", later, at, pid=2), line("end", later, at, pid=2)]
    assert not told_of_limits(connection, lines)
    connection.execute("UPDATE wakeboard.job_attempts SET finished_at = now() + interval '1 minute'")
    assert told_of_limits(connection, lines) == ["I13: 2 runs of mail at once, where 1 may be"]


def told_of_limits(connection: Connection, lines: list[Line]) -> list[str]:
    told = invariants.check_invariants(connection, lines, {}, limits={"mail": 1})
    return [each for each in told if each.startswith("I13")]


def test_i13_forgets_a_handler_that_died_when_its_run_starts_again() -> None:
    lines = [line("start", 1, 1), line("start", 1, 2, attempt=2, pid=2), line("end", 1, 3, attempt=2, pid=2)]
    assert invariants.i13_limits_hold(lines, {"mail": 1}) == []


def test_i14_tells_a_silence_that_the_status_page_hides(connection: Connection) -> None:
    name = a_worker(connection)
    insert(
        connection, "loops",
        {"process_id": name, "name": "reap", "interval_seconds": 1, "last_success_at": from_now("-1 minute")},
        "name",
    )  # fmt: skip
    (told,) = invariants.i14_silence_is_visible(connection, 200)
    assert told == f"I14: the duty reap of {name} is late and the status page says 200"
    assert invariants.i14_silence_is_visible(connection, 503) == []


def test_i15_tells_a_payload_that_changed_on_its_way() -> None:
    (told,) = invariants.i15_payloads_arrive_whole([line("start", 1)], {1: truth_file.hash_of({"n": 2**70})})
    assert told == "I15: attempt 1 of run 1 got another payload than was enqueued"


def test_a_house_that_is_violated_says_how(house: House) -> None:
    house.acknowledge(77, {})
    with pytest.raises(AssertionError, match="run 77 was acknowledged and does not exist"):
        house.check()


def a_row(number: str, **columns: str) -> FaultRow:
    texts = {"injected": "a|b", "expected": "c", "measured": "d", "verdict": "held", "seed": "7"} | columns
    return FaultRow(number=number, seconds=1.4, **texts)


def test_the_table_is_in_the_order_of_its_numbers() -> None:
    rows = [a_row(number) for number in ("F10", "L1", "F2")]
    assert [row.number for row in in_order(rows)] == ["F2", "F10", "L1"]
    page = as_markdown(rows).splitlines()
    assert page[-3:] == [f"| {number} | a/b | c | d | held | 1 | 7 |" for number in ("F2", "F10", "L1")]


def test_the_table_fits_the_screen() -> None:
    lines = as_text([a_row("F2", measured="many words " * 20)], 100)
    assert max(map(len, lines)) <= 100
    assert " ".join(word for text in lines for word in text.split()).count("words") == 20


def test_a_full_run_does_more_than_a_small_one() -> None:
    assert (Scale(full=False).times(10, 200), Scale(full=True).times(10, 200)) == (10, 200)


def test_a_row_that_does_not_exist_is_told() -> None:
    asked = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "--faults-only=F999",
        str(Path(__file__).parent),
    ]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "There is no fault row F999. There are: " in done.stderr
    assert " F01, F02," in done.stderr
