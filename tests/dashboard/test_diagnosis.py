"""Why a run waits: each reason in its sentence, the same on the page, in the twin and in the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import words_of
from tests.support.factories import a_run, a_type, a_worker, from_now, insert
from wakeboard import cli
from wakeboard.reporting.diagnosis.wait_reasons import COUNT_CAP, WAITING_RUN, WaitingRun, wait_reasons

TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"
Told = Callable[[int], list[str]]


@pytest.fixture
def told(
    database: str,
    client: FlaskClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Told:
    """The sentences about a run, after it was seen that page, twin and terminal say the same."""
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)

    def tell(run_id: int) -> list[str]:
        capsys.readouterr()
        assert cli.run(["run", str(run_id), "--json"]) == 0
        terminal = json.loads(capsys.readouterr().out)["waits"]
        sentences: list[str] = client.get(f"/runs/{run_id}.json").get_json()["waits_for"]["reasons"]
        assert " ".join(sentences) == terminal
        page = words_of(client, f"/runs/{run_id}")
        for sentence in sentences:
            for part in re.split(TIME, sentence):
                assert without_spaces(part) in without_spaces(page)
        return sentences

    return tell


def without_spaces(text: str) -> str:
    return "".join(text.split())


def ended(connection: Connection, runs: int, job_type: str = "mail", minutes_ago: int = 1) -> None:
    """Say that so many attempts of a type ended in one minute."""
    values = {
        "minute": from_now(f"-{minutes_ago} minutes"), "job_type": job_type, "outcome": "succeeded",
        "duration_bucket": 1, "wait_bucket": 1, "runs": runs, "duration_ms": 1, "duration_max_ms": 1,
        "wait_ms": 1, "wait_max_ms": 1,
    }  # fmt: skip
    insert(connection, "statistics_rollups", values, "runs")


def test_a_run_that_is_not_due_says_when_it_is(
    connection: Connection, told: Told, client: FlaskClient
) -> None:
    a_worker(connection)
    run = a_run(connection, run_at="3 minutes")
    (sentence,) = told(run)
    assert re.fullmatch(rf"Waits for its time: due {TIME}\.", sentence)
    assert 'data-relative="relative"' in client.get(f"/runs/{run}").text


def test_a_backoff_says_after_which_attempt_why_and_when_next(connection: Connection, told: Told) -> None:
    a_worker(connection)
    run = a_run(connection, "failed", attempts=2, failures=2, error_code="http_503")
    (sentence,) = told(run)
    assert re.fullmatch(rf"Backing off after attempt 2 of 10 \(http_503\), next at {TIME}\.", sentence)


def test_attempts_that_were_no_failures_are_told_apart(connection: Connection, told: Told) -> None:
    a_worker(connection)
    run = a_run(connection, "failed", attempts=5, failures=2)
    assert "after attempt 5, failure 2 of 10" in told(run)[0]


def test_a_failed_run_that_is_due_again_waits_for_a_worker(connection: Connection, told: Told) -> None:
    a_worker(connection)
    first, second = told(a_run(connection, "failed", run_at="-1 second"))
    assert re.fullmatch(rf"Waits for a worker: due {TIME}, after attempt 1 of 10 \(smtp_down\)\.", first)
    assert second == "Nothing is in its way: the next free worker takes it."


def test_a_start_that_the_database_refuses_is_told_with_its_sentence(
    connection: Connection, client: FlaskClient, told: Told
) -> None:
    a_worker(connection)
    said = {"error_code": "claim_refused", "last_error": "a report names its customer, token=hunter22"}
    queued = a_run(connection, run_at="1 minute", **said)
    for run_id in (queued, a_run(connection, "failed", **said)):
        (sentence,) = told(run_id)
        assert re.fullmatch(f"Refused by the database: .* tried again at {TIME}.", sentence)
        page = words_of(client, f"/runs/{run_id}")
        assert "a report names its customer" in page
        assert "hunter22" not in page
    assert "claim_refused" in words_of(client, "/runs?status=queued")


def test_a_paused_type_names_who_when_and_why(connection: Connection, told: Told) -> None:
    a_worker(connection)
    a_type(
        connection, "mail", paused_at=from_now("-5 minutes"), paused_by="anna", paused_reason="provider down"
    )
    sentence = told(a_run(connection))[0]
    assert re.fullmatch(
        rf"Paused: Type mail was paused by anna at {TIME} \(“provider down”\): "
        r"nothing of it starts until it is resumed\.",
        sentence,
    )


def test_a_full_limit_says_how_many_of_how_many_and_leads_to_them(
    connection: Connection, told: Told, client: FlaskClient
) -> None:
    a_worker(connection, "w1", concurrency=9)
    a_type(connection, "mail", max_running=4)
    run = a_run(connection)
    for _ in range(4):
        a_run(connection, "running")
    assert told(run)[0].startswith("The limit is reached: 4 of 4 allowed runs of this type are running.")
    page = client.get(f"/runs/{run}").text
    assert '<a href="/runs?status=running&amp;type=mail">4 of 4</a>' in page


def test_a_limit_of_nothing_says_that_none_may_run(connection: Connection, told: Told) -> None:
    a_worker(connection)
    a_type(connection, "mail", max_running_operator=0)
    assert told(a_run(connection))[0] == "May not run: The limit of its type is 0: none may run."


def test_a_queue_says_how_many_come_first_and_about_how_long(connection: Connection, told: Told) -> None:
    a_worker(connection)
    run = a_run(connection)
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, run_at)
        SELECT 'mail', now() - interval '1 hour' FROM generate_series(1, 812)"""
    )
    assert told(run)[0] == (
        "Waits in line: 812 due runs of this type come before it;"
        " none of this type has ended in the last 5 minutes."
    )
    ended(connection, 9_000, "bill")
    ended(connection, 9_000, minutes_ago=9)
    ended(connection, 700)
    # 700 in the last five to six minutes: 812 take 348 to 418 seconds.
    assert told(run)[0] in (
        f"Waits in line: 812 due runs of this type come before it, about {minutes} min at the present rate."
        for minutes in (6, 7)
    )


def test_no_time_is_promised_while_nothing_starts(connection: Connection, told: Told) -> None:
    ended(connection, 700)
    a_type(connection, "mail")
    run = a_run(connection)
    a_run(connection, priority=0)
    assert told(run)[-2] == "1 due run of this type comes before it."
    a_worker(connection)
    assert "at the present rate" in told(run)[0]
    connection.execute("UPDATE wakeboard.job_types SET paused_at = now()")
    assert told(run)[-2] == "1 due run of this type comes before it."


def test_a_type_without_a_live_worker_says_so_and_what_to_do(connection: Connection, told: Told) -> None:
    run = a_run(connection)
    assert told(run)[0] == (
        "Nobody to run it: No live worker runs this type."
        " No worker is alive at all; start one: wakeboard worker."
        " None has ever registered this type: is its name right?"
    )
    a_type(connection, "mail")
    a_worker(connection, job_types=["bill"])
    a_worker(connection, stopping_at=from_now("-1 minute"))
    assert told(run)[0] == (
        "Nobody to run it: No live worker runs this type."
        " 2 workers are alive, for other types or on the way out: see Workers."
    )


def test_a_command_of_a_user_says_which_worker_would_run_it(connection: Connection, told: Told) -> None:
    a_type(connection, "command:root")
    a_worker(connection, job_types=["command", "command:root"])
    run = a_run(connection, job_type="command:www-data")
    assert told(run)[0] == (
        "Nobody to run it: No live worker runs commands as www-data: start a worker as that user, or a "
        "worker as root with WAKEBOARD_RUN_AS_USERS=www-data. See Workers."
    )
    a_worker(connection, job_types=["command:www-data"])
    assert "Nobody to run it" not in told(run)[0]
    connection.execute("UPDATE wakeboard.workers SET stopped_at = now()")
    assert (
        "No live worker runs commands as root: start a worker as root."
        in (told(a_run(connection, job_type="command:root"))[0])
    )


def test_a_type_whose_workers_drain_says_that_one_may_be_undrained(
    connection: Connection, told: Told, client: FlaskClient
) -> None:
    a_type(connection, "mail")
    run = a_run(connection)
    a_worker(connection, drain_requested_at="-1 minute")
    assert told(run)[0] == (
        "Nobody to run it: No worker takes runs of this type."
        " 1 that could is draining: undrain it on Workers, or start another: wakeboard worker."
    )
    assert '<a href="/workers">Workers</a>' in client.get(f"/runs/{run}").text
    a_worker(connection, drain_requested_at="-1 minute")
    # None of these could be undrained for it.
    a_worker(connection, drain_requested_at="-1 minute", stop_requested_at="-1 second")
    a_worker(connection, drain_requested_at="-1 minute", seen="-1 hour")
    a_worker(connection, drain_requested_at="-1 minute", job_types=["bill"])
    assert " 2 that could are draining: undrain one on Workers" in told(run)[0]
    counted = client.get(f"/runs/{run}.json").get_json()["waits_for"]
    assert (counted["workers"], counted["draining"], counted["others"]) == (0, 2, 4)
    a_worker(connection)
    assert told(run)[-1] == "Nothing is in its way: the next free worker takes it."


def test_full_workers_are_said_to_be_full(connection: Connection, told: Told) -> None:
    a_worker(connection, concurrency=2, running=2)
    assert (
        told(a_run(connection))[0]
        == "Waits for a slot: All 2 slots of 1 worker for this type are busy: see what runs now."
    )


def test_of_several_reasons_all_are_told_the_one_that_decides_first(
    connection: Connection, told: Told
) -> None:
    a_worker(connection, "w1", concurrency=1, running=1)
    a_type(connection, "mail", max_running=1)
    run = a_run(connection)
    a_run(connection, "running")
    a_run(connection, priority=0)
    assert [sentence.split(":")[0].split(" of ")[0] for sentence in told(run)[:-1]] == [
        "The limit is reached", "All 1 slot", "1 due run",
    ]  # fmt: skip
    connection.execute("UPDATE wakeboard.job_types SET paused_at = now(), paused_by = 'anna'")
    assert told(run)[0].startswith("Paused: Type mail was paused by anna")
    assert "The limit is reached" in told(run)[1]
    assert re.fullmatch(rf"Due {TIME}\.", told(run)[-1])
    later = a_run(connection, run_at="3 minutes")
    assert told(later)[0].startswith("Waits for its time: due ") and "was paused by" in told(later)[1]


def test_what_does_not_wait_has_no_reason_to(connection: Connection, client: FlaskClient) -> None:
    for state in ("running", "succeeded", "dead", "cancelled"):
        run = a_run(connection, state)
        assert client.get(f"/runs/{run}.json").get_json()["waits_for"] is None


def test_a_terminal_says_when_in_the_operators_zone_and_how_far_away(
    connection: Connection, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    a_worker(connection)
    run = a_run(connection, run_at="10 minutes")
    told(run)
    assert cli.run(["run", str(run), "--timezone", "Asia/Tokyo"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"Waits for its time: due 20\S+ \S+\+09:00 \(in (10|9) m.*\)\.", shown)


def test_hostile_reasons_stay_text(connection: Connection, client: FlaskClient, told: Told) -> None:
    a_worker(connection)
    a_type(connection, "mail", paused_at=from_now("0 s"), paused_by="<b>{who}", paused_reason="{x}\x1b[31m")
    run = a_run(connection)
    page = client.get(f"/runs/{run}").text
    assert "<b>{who}" not in page and "&lt;b&gt;{who}" in page and "\x1b" not in page


def test_counting_a_long_queue_stops(connection: Connection) -> None:
    run = WaitingRun(
        job_type="mail", status="queued", run_at=datetime.now(UTC), attempts=0, failures=0, error_code=None,
        is_due=True, most_attempts=10, is_known=True, paused_at=None, paused_by=None, paused_reason=None,
        paused_until=None, most_running=None, running=0, ahead=COUNT_CAP + 1, ended=3000, ended_seconds=300.0,
        workers=1, slots=4, busy=0, draining=0, others=1,
    )  # fmt: skip
    said = wait_reasons(run)[0].say()
    assert (
        said == "Waits in line: 10 000+ due runs of this type come before it,"
        " more than 17 min at the present rate."
    )


def test_the_question_never_reads_the_whole_table(connection: Connection) -> None:
    run = a_run(connection, job_type="rare", priority=4)
    a_type(connection, "rare", max_running=3)
    for state in ("queued", "running", "failed"):
        a_run(connection, state, job_type="rare")
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, run_at, priority, finished_at)
        SELECT 'mail', CASE WHEN n % 3 = 0 THEN 'queued' ELSE 'succeeded' END,
            now() + (n % 7200 - 3600) * interval '1 s', n % 5, CASE WHEN n % 3 > 0 THEN now() END
        FROM generate_series(1, 50000) AS n"""
    )
    connection.execute("ANALYZE wakeboard.job_runs")
    (mail,) = (
        connection.execute("SELECT max(id) FROM wakeboard.job_runs WHERE status = 'queued'").fetchone() or ()
    )
    for run_id in (run, mail):
        explained = connection.execute(f"EXPLAIN {WAITING_RUN}".encode(), {"id": run_id}).fetchall()
        plan = "\n".join(line for (line,) in explained)
        assert "Seq Scan on job_runs" not in plan, plan
        assert set(re.findall(r"(?:using|Bitmap Index Scan on) (job_runs\w+)", plan)) == {
            "job_runs_pkey", "job_runs_claimable", "job_runs_leased",
        }, plan  # fmt: skip
