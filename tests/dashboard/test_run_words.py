"""What the page of a run says in words, draws as a tree and gives to tickets: pure functions."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from wakeboard.core.text.redaction import HIDDEN
from wakeboard_dashboard.charts.tree import LONGEST, MOST_CHILDREN, MOST_NODES, Node, tree
from wakeboard_dashboard.text.attempt import describe_followups
from wakeboard_dashboard.text.progress import progress
from wakeboard_dashboard.text.ticket import block, code, commands, markdown

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
PAGE = "http://jobs.example.org/runs/7"


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


# Progress


def a_running(done: int | None, total: int | None, **columns: Any) -> dict[str, Any]:
    times = {"started_at": at(0), "finished_at": None, "failed_at": None}
    return {"status": "running", "progress_done": done, "progress_total": total} | times | columns


def test_an_end_is_estimated_from_what_was_told_last() -> None:
    found = progress(a_running(70, 100), at(35))
    assert found is not None
    assert (found.rate, found.ends_at) == ("2 a second", at(50))


@pytest.mark.parametrize(
    ("done", "seconds", "rate"),
    [(7, 2, "3.5 a second"), (30, 60, "30 a minute"), (1, 3600, "1 an hour"), (0, 60, ""), (5, 1, "")],
)
def test_a_rate_is_said_in_the_unit_that_people_would_use(done: int, seconds: int, rate: str) -> None:
    found = progress(a_running(done, 100), at(seconds))
    assert found is not None and found.rate == rate


def test_no_end_is_promised_where_nobody_can_know() -> None:
    for run in (a_running(70, None), a_running(0, 100), a_running(1, 10**17), a_running(5, -1)):
        found = progress(run, at(60))
        assert found is not None and found.ends_at is None
    assert progress(a_running(None, None), at(60)) is None
    ended = progress(a_running(50, 100, status="dead", finished_at=at(25)), None)
    assert ended is not None and (ended.rate, ended.ends_at) == ("2 a second", None)
    waiting = progress(a_running(50, 100, status="queued", started_at=None), None)
    assert waiting is not None and (waiting.done, waiting.rate) == (50, "")


def test_more_done_than_was_to_do_is_through_now() -> None:
    found = progress(a_running(120, 100), at(60))
    assert found is not None and found.ends_at == at(60)


# What came after an attempt


def an_end(
    outcome: str = "failed", then: float | None = None, due: float = -5, epoch: int = 1
) -> dict[str, Any]:
    times = {"due_at": at(due), "finished_at": at(0), "next_run_at": None if then is None else at(then)}
    return {"outcome": outcome, "lease_epoch": epoch} | times


def a_waiting(
    run_at: float, status: str = "failed", backoff: str = "1m,5m", ended: float = 0
) -> dict[str, Any]:
    return {"status": status, "run_at": at(run_at), "backoff": backoff, "finished_at": at(ended)}


@pytest.mark.parametrize(
    ("attempt", "run", "said"),
    [
        (an_end(then=66), a_waiting(66), "next try after 1 min 6 s, by the backoff of its type"),
        (an_end(then=240), a_waiting(240), "next try after 4 min, by the backoff of its type"),
        (an_end(then=900), a_waiting(900), "next try after 15 min: not by the rule of its type today"),
        (an_end(then=300), a_waiting(20), "brought forward by 4 min 40 s: somebody retried it"),
        (an_end("lost", then=0), a_waiting(0), "at once: a lost lease is taken over without a wait"),
        (an_end("released"), a_waiting(0, "queued"), "given back, at no cost"),
        (an_end(), a_waiting(-5, "dead"), "gave up"),
        (an_end(), a_waiting(0, "queued"), "gave up, until somebody retried it"),
        (an_end(), a_waiting(-5, "cancelled"), "cancelled"),
        (an_end(), a_waiting(-5, "cancelled", ended=600), "gave up; cancelled later"),
    ],
)
def test_each_end_says_what_followed_and_why(attempt: dict[str, Any], run: dict[str, Any], said: str) -> None:
    assert said in describe_followups([attempt], run)[1]


def test_a_success_is_followed_by_nothing_and_the_one_before_by_its_own_delay() -> None:
    ended = [an_end("succeeded", due=60, epoch=2), an_end(then=60)]
    assert describe_followups(ended, a_waiting(60, "succeeded")) == {
        2: "", 1: "next try after 1 min, by the backoff of its type",
    }  # fmt: skip


# A payload as a tree


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes]


def test_a_payload_is_shown_as_it_is_with_its_secrets_hidden() -> None:
    found = tree({"id": 812, "token": {"a": "hunter2"}, "to": ["a", None, 1.5], "say": "key secret=hunter2"})
    assert names(found.nodes) == ["id", "token", "to", "say"] and not found.is_cut
    number, token, to, say = found.nodes
    assert (number.text, number.seek) == ("812", ("id", "812"))
    assert (token.kind, token.text, token.seek, token.children) == ("hidden", HIDDEN, None, ())
    assert [(each.text, each.seek) for each in to.children] == [
        ("a", ("to.0", "a")), ("null", None), ("1.5", None),
    ]  # fmt: skip
    assert "hunter2" not in say.text and say.seek is None


def test_a_tree_is_cut_in_breadth_depth_and_length() -> None:
    def count(nodes: tuple[Node, ...]) -> int:
        return sum(1 + count(node.children) for node in nodes)

    wide = tree({"rows": [{"id": i, "name": str(i)} for i in range(10_000)], "last": 1})
    assert wide.is_cut and count(wide.nodes) <= MOST_NODES and names(wide.nodes) == ["rows", "last"]
    assert wide.nodes[0].more == 10_000 - MOST_CHILDREN
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"in": deep}
    assert tree(deep).is_cut
    long = tree({"text": "x" * 1_000})
    assert long.is_cut and len(long.nodes[0].text) == LONGEST + 1
    # What is cut is cut after its secrets are hidden.
    begun = tree({"url": "y" * (LONGEST - 30) + " https://anna:" + "hunter2" * 20 + "@db/x"})
    assert "hunter2" not in begun.nodes[0].text
    many = tree({str(number): number for number in range(1_000)})
    assert many.is_cut and many.size == 1_000 and len(many.nodes) == MOST_CHILDREN


# A ticket and commands


def a_row(**columns: Any) -> dict[str, Any]:
    row = dict.fromkeys(
        ("error_code", "definition", "idempotency_key", "enqueued_by", "started_at", "finished_at",
         "last_error")
    )  # fmt: skip
    values = {
        "id": 7, "job_type": "mail", "status": "dead", "attempts": 3, "failures": 3, "most_attempts": 3,
        "created_at": NOON, "run_at": NOON, "payload": {"id": 812}, "priority": 2,
    }  # fmt: skip
    return {**row, **values, **columns}


def test_a_ticket_says_what_failed_and_where_to_look() -> None:
    attempt = {
        "attempt": 3, "outcome": "failed", "started_at": at(0), "finished_at": at(3), "worker_id": "w1",
        "worker_name": None, "error_code": "http_503", "traceback": "File crm.py",
    }  # fmt: skip
    text = markdown(
        a_row(error_code="http_503", last_error="no answer", finished_at=at(3)), [attempt], [], PAGE
    )
    for part in (
        "### Run 7: `mail` is dead", PAGE, "3 starts, 3 of 3 failures", "`http_503`", "no answer",
        "File crm.py", "| 3 | failed | 2026-11-21 12:00:00 UTC | 3 s | `w1` | `http_503` |",
    ):  # fmt: skip
        assert part in text


def test_foreign_text_stays_inside_of_its_code() -> None:
    assert code("a`b``c") == "```a`b``c```"
    assert code("`x`") == "`` `x` ``"
    assert code("a|b\nc", in_table=True) == "`a\\|b c`"
    assert code("") == "` `"
    assert block("x\n```\n# not a heading", 100) == "````text\nx\n```\n# not a heading\n````"
    hostile = "# @everyone <img src=x> [a](http://evil.test) ``` \u202e"
    text = markdown(
        a_row(job_type=hostile, last_error=f"```\n{hostile}", error_code=hostile), [], [hostile], PAGE
    )
    assert "\u202e" not in text and "\n# " not in text.replace("````text\n```\n# ", "")


def test_commands_are_quoted_for_a_shell_and_keep_secrets_back() -> None:
    hostile = "it's; rm -rf $HOME"
    found = dict(commands(a_row(job_type=hostile, payload={"a": hostile}), PAGE, ["retry", "again"]))
    assert shlex.split(found["Enqueue the same"]) == [
        "wakeboard", "enqueue", "--payload", '{"a": "it\'s; rm -rf $HOME"}', hostile,
    ]  # fmt: skip
    assert (found["Show"], found["Retry"]) == ("wakeboard run 7", "wakeboard retry 7")
    assert shlex.split(found["Retry by curl"])[-3:] == ["-X", "POST", f"{PAGE}/retry"]
    assert shlex.split(found["Show by curl"])[-1] == f"{PAGE}.json"
    for payload in ({"token": "hunter2"}, {"long": "x" * 5_000}, {"bidi": "\u202e"}, None):
        assert "Enqueue the same" not in dict(commands(a_row(payload=payload), PAGE, []))
    dashed = dict(commands(a_row(job_type="-x", payload={}, priority=0), PAGE, []))["Enqueue the same"]
    assert dashed == "wakeboard enqueue --priority 0 -- -x"
