"""What the supervisor sees of its children: answers, order, stop signals, deaths, replacement."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.processes import wait_until
from tests.support.workers.child_processes import APP, Nursery, assign, lives, wait_gone
from wakeboard.core.outcome import PLAIN
from wakeboard.core.process.assignment import Assignment
from wakeboard.runtime.processes import fork_safety
from wakeboard.runtime.processes.protocol import (
    Answer,
    AppFailure,
    AppTypes,
    AttemptEnd,
    ChildExit,
    ForkServerExit,
    Notice,
    SuccessBatch,
    answer_frame,
)


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    """Two slots, ready."""
    nursery = Nursery().start()
    yield nursery
    nursery.stop()


def test_ready_names_every_type_with_its_policy() -> None:
    nursery = Nursery()
    nursery.children.start()
    types = {policy["name"]: policy for policy in nursery.wait_for(AppTypes).policies}
    nursery.stop()
    assert types["hungry"]["memory_mb"] == 64
    assert types["nothing"]["backoff"] == "exponential 10s cap 30m"


def test_runs_are_answered_in_the_order_they_were_sent(nursery: Nursery) -> None:
    runs = [assign("echo", {"n": number}) for number in range(120)]
    for start in range(0, 120, 40):
        nursery.children.send(0, runs[start : start + 40])
    answered = [nursery.wait_for(AttemptEnd) for _ in runs]
    assert [finished.assignment for finished in answered] == runs
    assert answered[7].answer.result == '{"n":7}'
    assert answered[7].answer.output_tail == "{'n': 7}\n"
    assert nursery.children.outstanding(0) == []
    assert all(finished.started_ns <= finished.finished_ns for finished in answered)


def test_a_handler_sees_its_run(nursery: Nursery) -> None:
    [finished] = nursery.run(assign("show"))
    shown = finished.answer.result
    assert shown is not None
    for part in (
        '"attempt":3',
        '"key":"a key"',
        "2026-03-29 02:30:00+00:00",
        '"session":true',
        '"hour_left":true',
    ):
        assert part in shown


def test_async_handlers_run(nursery: Nursery) -> None:
    [finished] = nursery.run(assign("echo_async", {"a": 1}))
    assert finished.answer.result == '{"a":1}'


@pytest.mark.parametrize(
    "text", ["1" * 5000, "[" * 2000 + "]" * 2000, "[" * 5000, "{", "", '{"a": 1e400}'[:8]]
)
def test_a_payload_that_cannot_be_read_fails_its_own_run_only(nursery: Nursery, text: str) -> None:
    bad, good = nursery.run(assign("echo", text=text), assign("echo", {"fine": True}))
    assert (bad.answer.kind, bad.answer.error_code) == ("raised", "payload_unreadable")
    assert good.answer.kind == "returned"


def test_a_type_without_a_handler_fails_the_run(nursery: Nursery) -> None:
    [finished] = nursery.run(assign("nobody_knows"))
    assert finished.answer.error_code == "unknown_type"


def test_permanent_and_retryable_travel(nursery: Nursery) -> None:
    permanent, retryable = nursery.run(
        assign("fail", {"how": "permanent"}), assign("fail", {"how": "retryable"})
    )
    assert (permanent.answer.error_code, permanent.answer.permanent) == ("card_declined", True)
    assert (retryable.answer.error_code, retryable.answer.retry_after_seconds) == ("busy", 90.0)


@pytest.mark.parametrize("how", ["keyboard", "generator"])
def test_leaving_by_an_exception_is_never_success(nursery: Nursery, how: str) -> None:
    bad, good = nursery.run(assign("fail", {"how": how}), assign("nothing"))
    assert bad.answer.kind == "raised"
    assert good.answer.kind == "returned"


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [(None, "returned", None), (0, "returned", None), (3, "raised", "exit_3"), ("words", "raised", "exit_1")],
)
def test_leaving_with_a_status_ends_the_run_and_not_its_process(
    nursery: Nursery, status: object, kind: str, code: str | None
) -> None:
    left, after = nursery.run(assign("fail", {"how": "system_exit", "status": status}), assign("show"))
    assert (left.answer.kind, left.answer.error_code) == (kind, code)
    assert f'"pid":{nursery.pid()},' in (after.answer.result or "")


@pytest.mark.parametrize(
    ("how", "code"), [("exit", "exited"), ("abort", "signal_SIGABRT"), ("segfault", "signal_SIGSEGV")]
)
def test_a_process_that_ends_under_its_run_is_a_crash(nursery: Nursery, how: str, code: str) -> None:
    first, second = assign("violent", {"how": how}), assign("nothing")
    died = nursery.die(first, second)
    assert (died.running, died.unstarted) == (first, [second])
    assert (died.answer.kind, died.answer.error_code) == ("crashed", code)
    assert nursery.run(second)[0].answer.kind == "returned"


def test_a_segfault_leaves_its_traceback_in_the_output(nursery: Nursery) -> None:
    died = nursery.die(assign("violent", {"how": "segfault"}))
    assert died.text == "killed by signal 11 (SIGSEGV)"
    assert "in violent" in (died.answer.output_tail or "")


def test_closing_the_workers_descriptors_is_never_success(nursery: Nursery) -> None:
    [finished] = nursery.run(assign("violent", {"how": "close"}))
    assert (finished.answer.kind, finished.answer.error_code) == ("crashed", "descriptors_closed")
    assert nursery.wait_for(ChildExit).running is None
    assert nursery.run(assign("nothing"))[0].answer.kind == "returned"


def test_a_quick_run_that_replaces_its_output_is_never_success(nursery: Nursery) -> None:
    _, finished = nursery.run(assign("nothing"), assign("replace_output"))
    assert (finished.answer.kind, finished.answer.error_code) == ("crashed", "descriptors_closed")


def test_closing_every_descriptor_still_gives_one_answer_that_is_no_success(nursery: Nursery) -> None:
    died = nursery.die(assign("violent", {"how": "close_everything"}))
    assert died.running is None
    assert nursery.wait_for(AttemptEnd).answer.error_code == "descriptors_closed"
    assert nursery.run(assign("nothing"))[0].answer.kind == "returned"


def test_a_fork_that_returns_from_the_handler_answers_once(nursery: Nursery) -> None:
    finished, after = nursery.run(assign("violent", {"how": "fork_and_return"}), assign("nothing"))
    assert finished.answer.result == str(nursery.pid())
    assert after.answer.kind == "returned"


def test_sigkill_of_a_child_is_told_at_once_and_its_slot_works_again(
    nursery: Nursery, tmp_path: Path
) -> None:
    waiting, queued = assign("wait", {"file": str(tmp_path / "pid")}), assign("nothing")
    nursery.begin(waiting, queued)
    nursery.wait_until((tmp_path / "pid").exists)
    killed_at = time.monotonic()
    os.kill(nursery.pid(), signal.SIGKILL)
    died = nursery.wait_for(ChildExit)
    assert time.monotonic() - killed_at < 1
    assert (died.answer.error_code, died.answer.message) == ("killed", "killed by signal 9 (SIGKILL)")
    assert not died.is_unconditional_kill
    assert (died.running, died.unstarted) == (waiting, [queued])
    assert died.answer.output_tail == "waiting\n"
    assert nursery.children.current(0) is None
    assert nursery.run(queued)[0].answer.kind == "returned"


def test_an_answer_not_sent_yet_survives_the_death_of_the_next_run(nursery: Nursery) -> None:
    first, second, third = (
        assign("violent", {"how": "nothing"}),
        assign("violent", {"how": "exit"}),
        assign("nothing"),
    )
    nursery.run(assign("violent", {"how": "nothing"}))
    died = nursery.die(first, second, third)
    assert (died.running, died.unstarted) == (second, [third])
    answered = [event for event in nursery.events if isinstance(event, AttemptEnd)]
    assert [(event.assignment, event.answer.kind) for event in answered] == [(first, "returned")]


def test_the_answer_before_a_long_run_does_not_wait_for_it(nursery: Nursery) -> None:
    nursery.children.send(0, [assign("nothing"), assign("wait")])
    assert nursery.wait_for(AttemptEnd).assignment.job_type == "nothing"
    nursery.wait_until(lambda: nursery.children.current(0))


def test_the_answer_before_a_run_of_a_type_whose_last_run_was_long_does_not_wait_for_it(
    nursery: Nursery,
) -> None:
    nursery.run(assign("nothing"), assign("last", 0.02))
    nursery.children.send(0, [assign("nothing"), assign("last", 600)])
    assert nursery.wait_for(AttemptEnd).assignment.job_type == "nothing"


def test_answers_of_runs_of_a_millisecond_leave_together(nursery: Nursery) -> None:
    nursery.run(assign("nap"))
    nursery.children.send(0, [assign("nap") for _ in range(200)])
    heard = [0]

    def all_heard() -> bool:
        heard.append(len(nursery.events))
        return heard[-1] >= 200

    nursery.wait_until(all_heard)
    assert max(later - earlier for earlier, later in pairwise(heard)) >= 3


@pytest.mark.parametrize("job_type", ["wait", "wait_async", "polite"])
def test_terminate_interrupts_and_returns_what_waited(nursery: Nursery, job_type: str) -> None:
    running, queued = assign(job_type), assign("nothing")
    nursery.begin(running, queued)
    nursery.children.terminate(0)
    finished, died = nursery.wait_for(AttemptEnd), nursery.wait_for(ChildExit)
    assert (finished.assignment, finished.answer.kind) == (running, "cancelled")
    assert (died.running, died.unstarted) == (None, [queued])
    assert nursery.run(queued)[0].answer.kind == "returned"


def test_terminate_after_the_deadline_is_a_timeout(nursery: Nursery) -> None:
    nursery.begin(assign("wait", timeout=0.01))
    started = nursery.children.current(0)
    assert started is not None
    nursery.wait_until(lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) > started.started_ns + 10_000_000)
    nursery.children.terminate(0)
    assert nursery.wait_for(AttemptEnd).answer.kind == "timed_out"


def test_check_raises_past_the_deadline_without_any_signal(nursery: Nursery) -> None:
    [finished] = nursery.run(assign("polite", timeout=0.05))
    assert (finished.answer.kind, finished.answer.error_code) == ("timed_out", "timed_out")


def test_request_cancel_stops_a_polite_handler_and_keeps_its_child(nursery: Nursery, tmp_path: Path) -> None:
    run = assign("polite", {"file": str(tmp_path / "begun")})
    nursery.begin(run)
    nursery.wait_until((tmp_path / "begun").exists)
    pid = nursery.pid()
    nursery.children.request_cancel(0, run.run_id, run.lease_epoch - 1)
    nursery.children.request_cancel(0, run.run_id, run.lease_epoch)
    assert nursery.wait_for(AttemptEnd).answer.kind == "cancelled"
    nursery.run(assign("nothing"))
    assert nursery.pid() == pid


def test_a_run_cancelled_before_its_start_never_calls_its_handler(nursery: Nursery) -> None:
    first, second = assign("polite", timeout=0.2), assign("echo", {"never": 1})
    nursery.begin(first, second)
    nursery.children.request_cancel(0, second.run_id, second.lease_epoch)
    nursery.wait_for(AttemptEnd)
    answer = nursery.wait_for(AttemptEnd).answer
    assert (answer.kind, answer.output_tail) == ("unbegun", None)


def test_a_handler_may_finish_although_it_was_told_to_stop(nursery: Nursery, tmp_path: Path) -> None:
    nursery.begin(assign("stubborn", {"file": str(tmp_path / "begun")}))
    wait_until((tmp_path / "begun").exists, 20, "the handler has begun")
    nursery.children.terminate(0)
    assert nursery.wait_for(AttemptEnd).answer.result == '"finished anyway"'
    assert nursery.wait_for(ChildExit).running is None


def test_a_signal_that_comes_too_late_hits_no_bystander(nursery: Nursery) -> None:
    over = assign("polite", timeout=0.05)
    nursery.begin(over)
    pid, page = nursery.pid(), nursery.children._slots[0].shared
    page.set_stop_target(over.run_id, over.lease_epoch)
    nursery.wait_for(AttemptEnd)
    bystander = assign("polite", timeout=0.5)
    nursery.begin(bystander)
    os.kill(pid, signal.SIGTERM)
    assert nursery.wait_for(AttemptEnd).answer.kind == "timed_out"
    assert lives(pid)


def test_a_signal_to_every_process_of_the_service_ends_no_run(nursery: Nursery) -> None:
    nursery.begin(assign("polite", timeout=0.5))
    fork_server = nursery.children._control.process
    assert fork_server is not None
    for pid in (nursery.pid(), fork_server.pid):
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(pid, number)
    assert nursery.wait_for(AttemptEnd).answer.kind == "timed_out"
    assert fork_server.poll() is None


@pytest.mark.parametrize("job_type", ["deaf", "stuck_in_c"])
def test_kill_ends_a_handler_that_nothing_else_ends(nursery: Nursery, tmp_path: Path, job_type: str) -> None:
    run = assign(job_type, {"file": str(tmp_path / "pid")})
    nursery.begin(run)
    nursery.wait_until((tmp_path / "pid").exists)
    nursery.children.terminate(0)
    nursery.children.kill(0)
    died = nursery.wait_for(ChildExit)
    assert (died.running, died.answer.error_code, died.is_unconditional_kill) == (run, "killed", True)


def test_kill_ends_a_child_that_is_stopped(nursery: Nursery) -> None:
    nursery.begin(assign("wait"))
    os.kill(nursery.pid(), signal.SIGSTOP)
    nursery.children.kill(0)
    assert "SIGKILL" in nursery.wait_for(ChildExit).text


def test_progress_is_seen_while_the_run_goes_on(nursery: Nursery) -> None:
    run = assign("count", timeout=5)
    assert nursery.children.progress(0) is None
    nursery.begin(run)
    nursery.wait_until(lambda: nursery.children.progress(0) == (3, 7))
    nursery.children.request_cancel(0, run.run_id, run.lease_epoch)
    nursery.wait_for(AttemptEnd)
    assert nursery.children.progress(0) is None


def test_output_is_seen_while_the_run_goes_on(nursery: Nursery) -> None:
    nursery.begin(assign("wait"))
    nursery.wait_until(lambda: nursery.children.output_tail(0) == "waiting\n")
    os.write(nursery.children._slots[0].output, b"\x1b[32m 10%\r\x1b[32m 20%\x1b[0m")
    assert nursery.children.output_tail(0) == "waiting\n 20%"


def test_output_is_safe_to_show_and_belongs_to_its_run(nursery: Nursery) -> None:
    text = "a\x00b\x1b[2J" + "x" * 20_000 + "end"
    first, second = nursery.run(assign("say", {"text": text}), assign("nothing"))
    tail = first.answer.output_tail
    assert tail is not None
    assert len(tail) <= 8192
    assert tail.startswith("a\ufffdbxxx")
    assert "xend\n" in tail
    assert "bytes left out" in tail
    assert "INFO logged\\nin one line\n" in tail
    assert tail.endswith("\ufffd\ufffdraw\n")
    assert second.answer.output_tail is None


def test_output_that_a_run_emptied_is_what_came_after(nursery: Nursery) -> None:
    first, second, third = nursery.run(assign("empty_output"), assign("nothing"), assign("echo", "as ever"))
    assert first.answer.output_tail == "said at last\n"
    assert second.answer.output_tail is None
    assert third.answer.output_tail == "as ever\n"


def test_a_file_that_a_run_emptied_hides_nothing_of_the_next_ones(nursery: Nursery) -> None:
    line = "x" * (os.fstat(nursery.children._slots[0].output).st_size - 1)
    nursery.run(assign("nothing"), assign("empty_and_end"))
    first, second = nursery.run(assign("echo", line), assign("nothing"))
    assert first.answer.output_tail == f"{line}\n"
    assert second.answer.output_tail is None


def test_a_frame_whose_rest_looks_like_answers_is_none(nursery: Nursery) -> None:
    waiting = assign("wait")
    nursery.begin(waiting)
    held = nursery.children._slots[0]
    forged = answer_frame(Answer(waiting.run_id, waiting.lease_epoch, 1, 2, PLAIN["returned"]))
    start = (len(forged) + 3).to_bytes(4, "big") + b"abc"
    assert held.read_answers(start)
    assert not held.read_answers(forged)
    died = nursery.wait_for(ChildExit)
    assert died.running is not None
    assert died.running.run_id == waiting.run_id


def test_an_answer_that_is_told_twice_counts_once(nursery: Nursery) -> None:
    waiting = assign("wait")
    nursery.begin(waiting, assign("nothing"))
    answer = answer_frame(Answer(waiting.run_id, waiting.lease_epoch, 1, 2, PLAIN["returned"]))
    nursery.children._slots[0].read_answers(answer * 2)
    assert [event for event in nursery.children.collect() if isinstance(event, SuccessBatch)] == [
        SuccessBatch(0, [(waiting, 1, 2)])
    ]


def test_a_print_loop_cannot_eat_memory(nursery: Nursery) -> None:
    nursery.begin(assign("chatter"))
    output = nursery.children._slots[0].output
    nursery.wait_until(lambda: os.fstat(output).st_size > 200 * 1024 * 1024)
    pid = nursery.pid()
    os.kill(pid, signal.SIGSTOP)
    nursery.wait_until(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text())
    nursery.children.trim_output()
    assert os.fstat(output).st_blocks * 512 <= 1024 * 1024
    assert nursery.children.output_tail(0).endswith("no play\n")


def test_a_run_may_not_take_more_memory_than_its_type_allows(nursery: Nursery) -> None:
    bad, worse, good = nursery.run(assign("hungry"), assign("hungry_array"), assign("nothing"))
    for answer in (bad.answer, worse.answer):
        assert (answer.kind, answer.error_code) == ("raised", "memory_limit")
        assert "memory_mb=64" in (answer.message or "")
    assert "in hungry" in (bad.answer.traceback or "")
    assert "ArrayMemoryError: Unable to allocate 1.00 GiB for an array" in (worse.answer.traceback or "")
    assert good.answer.kind == "returned"


def test_memory_that_is_only_reserved_or_shared_with_a_file_is_not_counted(nursery: Nursery) -> None:
    [mapped] = nursery.run(assign("maps_much"))
    assert mapped.answer.kind == "returned"


def test_the_memory_of_a_run_is_what_it_and_its_processes_took_since_it_began(nursery: Nursery) -> None:
    nursery.run(assign("keep", {"megabytes": 30}))
    nursery.begin(assign("family", {"megabytes": 20}))
    nursery.wait_until(lambda: (nursery.children.memory(0, 0) or 0) > 30 * 2**20)
    held = nursery.children.memory(0, 0) or 0
    assert held < 50 * 2**20, "twenty by itself, twenty by a process that it forked, and no page twice"


def test_memory_is_unknown_while_nothing_runs_and_for_types_without_a_limit(nursery: Nursery) -> None:
    assert nursery.children.memory(0, 0) is None
    nursery.begin(assign("polite"))
    assert nursery.children.memory(0, 0) is None


def test_a_kill_meant_for_a_run_that_has_ended_spares_the_next_one(nursery: Nursery, tmp_path: Path) -> None:
    over = assign("polite", timeout=0.05)
    bystander = assign("polite", {"file": str(tmp_path / "begun")}, timeout=30)
    nursery.begin(over)
    nursery.wait_for(AttemptEnd)
    nursery.begin(bystander)
    nursery.wait_until((tmp_path / "begun").exists)
    pid = nursery.pid()
    nursery.children.kill_run(0, over.run_id, over.lease_epoch)
    nursery.children.request_cancel(0, bystander.run_id, bystander.lease_epoch)
    assert nursery.wait_for(AttemptEnd).answer.kind == "cancelled"
    nursery.run(assign("nothing"))
    assert nursery.pid() == pid


def test_kills_that_race_with_the_ends_of_short_runs_never_hit_another_run(nursery: Nursery) -> None:
    hit = spared = 0
    for number in range(60):
        nursery.children.send(0, [assign("nap") for _ in range(6)])
        seen, end = None, time.monotonic() + 20
        while seen is None and nursery.children.outstanding(0) and time.monotonic() < end:
            seen = nursery.children.current(0)
            nursery.events += nursery.children.collect() if seen is None else []
        if seen is None:
            continue
        kill_at = seen.started_ns + number * 50_000
        while time.clock_gettime_ns(time.CLOCK_BOOTTIME) < kill_at:
            pass
        nursery.children.kill_run(0, seen.run_id, seen.lease_epoch)
        nursery.wait_until(lambda: not nursery.children.outstanding(0))
        deaths = [event for event in nursery.events if isinstance(event, ChildExit)]
        # None: it had answered, and was killed before it could begin the next one.
        assert all(died.running is None or died.running.run_id == seen.run_id for died in deaths)
        hit, spared = hit + len(deaths), spared + (not deaths)
        nursery.events.clear()
    assert hit, "some kills found their run"
    assert spared, "some runs had ended first"


def test_a_kill_finds_its_run_although_its_child_was_stopped_before(nursery: Nursery) -> None:
    run = assign("wait")
    nursery.begin(run)
    os.kill(nursery.pid(), signal.SIGSTOP)
    nursery.children.kill_run(0, run.run_id, run.lease_epoch)
    assert nursery.wait_for(ChildExit).running == run


def test_what_happens_after_the_commit_does_not_change_the_outcome(nursery: Nursery) -> None:
    [finished] = nursery.run(assign("committed"))
    assert (finished.answer.kind, finished.answer.message) == ("committed", "after the commit")


def test_a_child_is_replaced_after_its_share_of_runs_and_loses_none() -> None:
    nursery = Nursery(1, recycle_runs=10).start()
    todo = [assign("nothing") for _ in range(95)]
    expected = list(todo)
    done: list[Assignment] = []
    deaths = 0
    nursery.children.send(0, todo)
    while len(done) < 95:
        nursery.wait_until(lambda: nursery.events)
        event = nursery.events.pop(0)
        if isinstance(event, ChildExit):
            deaths += 1
            assert event.running is None
            nursery.children.send(0, event.unstarted)
        elif isinstance(event, AttemptEnd):
            done.append(event.assignment)
    nursery.stop()
    assert done == expected
    assert deaths == 9


def test_a_child_that_holds_too_much_memory_is_replaced() -> None:
    nursery = Nursery(1, recycle_mb=300).start()
    pids = [nursery.run(assign("grow"))[0].answer.result for _ in range(4)]
    assert len(set(pids)) == 1
    died = nursery.die(*[assign("grow") for _ in range(10)])
    assert died.running is None
    assert died.unstarted
    nursery.stop()


def test_when_the_fork_server_dies_all_goes_with_it_and_start_brings_it_back(
    nursery: Nursery, tmp_path: Path
) -> None:
    escape = assign("escape", {"folder": str(tmp_path), "wait": True})
    nursery.begin(escape)
    nursery.wait_until((tmp_path / "child").exists)
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    queued = assign("nothing")
    nursery.children.send(0, [queued])
    fork_server = nursery.children._control.process
    assert fork_server is not None
    os.kill(fork_server.pid, signal.SIGKILL)
    assert "SIGKILL" in nursery.wait_for(ForkServerExit).text
    died = nursery.wait_for(ChildExit)
    assert (died.running, died.unstarted) == (escape, [queued])
    assert len(pids) == 5
    assert wait_gone(pids, 1) == []
    nursery.children.send(1, [queued])
    assert nursery.wait_for(ChildExit).unstarted == [queued]
    nursery.start()
    assert nursery.run(queued)[0].answer.kind == "returned"


def test_the_supervisors_other_children_outlive_the_fork_server(nursery: Nursery) -> None:
    other = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")
    try:
        nursery.begin(assign("wait"))
        fork_server = nursery.children._control.process
        assert fork_server is not None
        os.kill(fork_server.pid, signal.SIGKILL)
        nursery.wait_for(ChildExit)
        assert lives(other)
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)


def test_an_app_that_does_not_exist_is_one_line() -> None:
    nursery = Nursery(app="tests.worker.no_such_app")
    nursery.children.start()
    message = nursery.wait_for(AppFailure).message
    assert message.startswith(
        "The handlers' module 'tests.worker.no_such_app' cannot be imported: ModuleNotFoundError"
    )
    assert "WAKEBOARD_APP" in message
    assert "\n" not in message
    nursery.stop()
    assert not any(isinstance(event, ForkServerExit) for event in nursery.events)


def test_an_app_that_fails_while_it_is_imported_shows_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_shop.py").write_text("import no_such_library\n")
    nursery = Nursery(app="broken_shop")
    nursery.children.start()
    message = nursery.wait_for(AppFailure).message
    assert message.startswith("The handlers' module 'broken_shop' cannot be imported: ModuleNotFoundError")
    assert "import no_such_library" in message
    nursery.stop()


def test_a_users_jobs_py_is_found_although_a_folder_of_ours_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.py").write_text(
        "from wakeboard import job\n\n\n@job('mine')\ndef mine(ctx): return 1\n"
    )
    nursery = Nursery(app="jobs")
    nursery.children.start()
    assert "mine" in {policy["name"] for policy in nursery.wait_for(AppTypes).policies}
    assert not [event for event in nursery.events if isinstance(event, Notice)]
    nursery.stop()


def test_an_app_without_a_handler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "idle_shop.py").write_text("PRICE = 3\n")
    nursery = Nursery(app="idle_shop")
    nursery.children.start()
    message = nursery.wait_for(Notice).message
    nursery.wait_for(AppTypes)
    assert message.startswith(f"The handlers' module 'idle_shop' ({tmp_path}/idle_shop.py) has no handler.")
    nursery.stop()


def test_the_look_at_what_handlers_left_open_leaves_nothing_open_itself(tmp_path: Path) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with (tmp_path / "file").open("w"):
        before = opened()
        fork_safety.find_hazards(set())
        # What an earlier test left to be collected may be closed meanwhile.
        assert opened() <= before


@pytest.mark.parametrize("module", ["threaded", "connected"])
def test_threads_and_connections_of_the_import_do_not_cross_a_fork(module: str) -> None:
    nursery = Nursery(app=f"tests.support.workers.apps.{module}")
    nursery.children.start()
    warned = nursery.wait_for(Notice).message
    assert "\n" not in warned
    assert module in warned or "a connection to 127.0.0.1:" in warned
    [finished] = nursery.run(assign("lone"))
    assert finished.answer.result == '"alone"'
    nursery.begin(assign("lone_wait"))
    nursery.children.kill(0)
    assert "SIGKILL" in nursery.wait_for(ChildExit).text
    nursery.stop()


def test_stop_leaves_no_process_and_no_descriptor(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    nursery = Nursery(app=APP).start()
    nursery.begin(assign("escape", {"folder": str(tmp_path), "wait": True}))
    nursery.wait_until((tmp_path / "child").exists)
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    nursery.children.kill_all()
    nursery.stop()
    assert [pid for pid in pids if lives(pid)] == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_one_registration_wakes_the_callers_loop(nursery: Nursery) -> None:
    selector = selectors.DefaultSelector()
    nursery.children.register(selector, "children")
    nursery.children.send(0, [assign("nothing")])
    [(key, _)] = selector.select(10)
    assert key.data == "children"
    nursery.wait_for(AttemptEnd)
    assert selector.select(0) == []
