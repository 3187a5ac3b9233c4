"""Wrong input from outside: one line that says what is wrong and what is allowed, never a traceback."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.factories import a_run, rows
from tests.support.http_client import JSON, Visitor
from tests.support.installation import Household, enqueue, wait_for_end
from tests.support.processes import run_wakeboard

LONG_ID = "1" * 23
ADD = ("schedule", "add", "x", "--type", "tidy")
COMMANDS = {
    ("enqueue", "tidy", "--payload", "not json"): "JSON",
    ("enqueue", "tidy", "--payload", "[1]"): "object",
    ("enqueue", "tidy", "--payload", '{"text": "%s"}' % ("x" * 70_000)): "65",
    ("enqueue", "no_such_type"): "--new-type",
    ("enqueue", "tidy", "--in", "soon"): "soon",
    ("enqueue", "tidy", "--priority", "9"): "4",
    (*ADD, "--cron", "61 * * * *"): "61",
    (*ADD, "--cron", "* * * * *", "--timezone", "Mars/Olympus"): "Mars/Olympus",
    ("run", LONG_ID): LONG_ID,
    ("retry", "first"): "first",
    ("runs", "--status", "broken"): "succeeded",
    ("runs", "--since", "yesterday-ish"): "yesterday-ish",
    ("import-crontab", "/nowhere/crontab"): "/nowhere/crontab",
    ("types", "limit", "tidy", "minus"): "minus",
    ("no-such-command",): "no-such-command",
    ("worker", "--concurrency", "0"): "1",
    ("web", "--bind", "nowhere"): "HOST:PORT",
    ("run", "999999"): "999999",
    ("retry", "999999"): "999999",
    ("cancel", "999999"): "999999",
    ("schedule", "pause", "no-such-schedule"): "no-such-schedule",
}
ADDRESSES = {
    "/runs/999999": 404,
    f"/runs/{LONG_ID}": 404,
    "/runs/first": 404,
    "/runs?colour=red": 400,
    "/runs?status=broken": 400,
    "/runs?since=yesterday-ish": 400,
    f"/runs?worker={'w' * 600}": 400,
    "/runs?cursor=made-up": 400,
    "/runs?limit=-1": 400,
    "/runs?q=%00": 400,
    "/schedules/no-such-schedule": 404,
    "/no-such-page": 404,
}
POSTS = {
    "/runs/999999/retry": 404,
    f"/runs/{LONG_ID}/cancel": 404,
    "/runs/bulk/retry": 400,
    "/runs/bulk/delete": 404,
    "/schedules/no-such-schedule/pause": 404,
    "/leases/999999/release": 404,
    "/no-such-page": 404,
}


def assert_a_sentence(text: str) -> None:
    assert "Traceback" not in text
    assert "bug in Wakeboard" not in text
    assert text.rstrip()[-1:] in ".?!):" or "--help" in text or "wakeboard" in text, text


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:40])
def test_a_wrong_command_is_one_line_and_exit_2(
    household: Household, shared_database: str, words: tuple[str, ...]
) -> None:
    said = run_wakeboard(*words, database=shared_database)
    assert said.returncode == 2, said
    assert said.stdout == ""
    assert said.stderr.count("\n") == 1, said.stderr
    assert COMMANDS[words] in said.stderr
    assert_a_sentence(said.stderr)


def test_a_module_that_is_not_there_ends_the_worker_with_its_name(shared_database: str) -> None:
    said = run_wakeboard("worker", "--app", "no_such_module", database=shared_database)
    assert said.returncode == 2
    assert "no_such_module" in said.stderr
    assert "WAKEBOARD_APP" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("postgresql://127.0.0.1:1/nothing", 1),
        ("postgresql://no-such-host.invalid/x", 1),
        ("mysql://root@localhost/x", 2),
    ],
)
def test_a_wrong_database_address_is_one_line(url: str, code: int) -> None:
    for words in (("runs",), ("db", "check")):
        said = run_wakeboard(*words, database=url)
        assert said.returncode == code, said
        assert said.stderr.count("\n") == 1, said.stderr
        assert_a_sentence(said.stderr)


def test_wrong_addresses_are_answered_with_a_sentence_in_page_and_twin(admin: Visitor) -> None:
    for path, code in ADDRESSES.items():
        page = admin.get(path, {"Accept": "text/html"})
        assert page.code == code, path
        assert "Traceback" not in page.text
        before, question, query = path.partition("?")
        twin = admin.get(f"{before}.json{question}{query}")
        assert twin.code == code, path
        assert_a_sentence(twin.json["message"])


def test_wrong_posts_are_answered_with_a_sentence(admin: Visitor) -> None:
    for path, code in POSTS.items():
        assert admin.post(path).code == code, path
        refused = admin.post(path, headers=JSON)
        assert refused.code == code, path
        assert_a_sentence(refused.json["message"])


def test_a_payload_that_is_no_object_or_too_large_enqueues_nothing(
    household: Household, shared: Connection, admin: Visitor
) -> None:
    run_id = a_run(shared, "succeeded", job_type="tidy")
    before = len(rows(shared, "job_runs"))
    for given, word in (("not json", "JSON"), ("[1]", "object"), ('{"x": "%s"}' % ("x" * 70_000), "65")):
        page = admin.post(f"/runs/{run_id}/again", {"payload": given})
        assert page.code in (400, 413), given[:20]
        twin = admin.post(f"/runs/{run_id}/again", headers=JSON, json_body={"payload": given})
        assert twin.code in (400, 413), given[:20]
        assert word in twin.json["message"]
        assert_a_sentence(twin.json["message"])
    huge = admin.post(f"/runs/{run_id}/again", headers=JSON, json_body={"payload": {"x": "x" * 2_000_000}})
    assert huge.code == 413
    assert len(rows(shared, "job_runs")) == before


def test_the_processes_wrote_no_traceback(household: Household, shared: Connection) -> None:
    assert wait_for_end(shared, enqueue(shared, "tidy")) == "succeeded"
    assert "Traceback" not in household.up.output
