"""The operator's verbs in a terminal: what they print, what they change, and with which code they end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from tests.conftest import Connection
from tests.support.factories import (
    a_definition,
    a_run,
    a_type,
    a_worker,
    an_attempt,
    from_now,
    insert,
    row,
    rows,
)
from tests.support.postgres.servers import Server
from wakeboard import cli
from wakeboard.accounts import sessions, tokens, users
from wakeboard.cli.commands.runs import SHOWN
from wakeboard.core.leases import STATES
from wakeboard.database import db
from wakeboard.database.audit import terminal_actor
from wakeboard.database.tables import job_runs
from wakeboard.queue import definitions
from wakeboard.queue.definitions import Definition
from wakeboard.reporting import worker_states

HOSTILE = "bad\x1b[31m\r\nrun 1 is fine"


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Said]


@pytest.fixture
def wakeboard(database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command line on ``database`` in this process."""
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)

    def run(*words: object) -> Said:
        capsys.readouterr()
        code = cli.run([str(word) for word in words])
        return Said(code, *capsys.readouterr())

    return run


def test_enqueue_prints_the_id_and_the_same_key_prints_the_same(
    wakeboard: Command, connection: Connection
) -> None:
    a_type(connection, "mail")
    first = wakeboard("enqueue", "mail", "--payload", '{"to": "a@example.com"}', "--key", "k1")
    assert (first.code, first.err) == (0, "")
    assert wakeboard("enqueue", "mail", "--key", "k1").out == first.out
    run = row(connection, int(first.out))
    assert run["payload"] == {"to": "a@example.com"}
    assert run["enqueued_by"].startswith("cli:")


def test_enqueue_takes_a_file_and_a_delay_and_answers_machines(
    wakeboard: Command, connection: Connection, tmp_path: Path
) -> None:
    (tmp_path / "p.json").write_text('{"n": 1}')
    said = wakeboard(
        "enqueue", "mail", "--new-type", "--payload", f"@{tmp_path}/p.json", "--in", "5m", "--json"
    )
    (run,) = rows(connection, "job_runs", "run_at > now() + interval '4 minutes'")
    assert said.json == {"id": run["id"]}
    assert run["payload"] == {"n": 1}


def test_enqueue_refuses_a_type_nobody_registered_and_names_what_is_near(
    wakeboard: Command, connection: Connection
) -> None:
    a_type(connection, "send_invoice")
    said = wakeboard("enqueue", "send_invoise")
    assert said.code == 2
    assert "send_invoice" in said.err
    assert "--new-type" in said.err
    assert rows(connection, "job_runs") == []


WRONG_USES = [
    ("enqueue", "mail", "--new-type", "--payload", "nonsense"),
    ("enqueue", "mail", "--new-type", "--payload", "[1]"),
    ("enqueue", "mail", "--new-type", "--payload", '{"n": NaN}'),
    ("enqueue", "mail", "--new-type", "--payload", '{"n": "\\u0000"}'),
    ("enqueue", "mail", "--new-type", "--payload", '{"n": "' + "x" * 70_000 + '"}'),
    ("enqueue", "mail", "--new-type", "--payload", "@/no/such/file"),
    ("enqueue", "mail", "--new-type", "--in", "soon"),
    ("enqueue", "mail", "--new-type", "--at", "2030-01-01T00:00"),
    ("enqueue", "mail", "--new-type", "--in", "5m", "--at", "2030-01-01T00:00Z"),
    ("enqueue", "mail", "--new-type", "--key", "x" * 201),
    ("enqueue", "mail", "--new-type", "--priority", "5"),
    ("enqueue", "mail", "--new-type", "--max-attempts", "0"),
    ("enqueue", "a\nb", "--new-type"),
    ("enqueue", "nobody_knows_it"),
    ("runs", "--status", "faled"),
    ("runs", "--since", "yesterday"),
    ("runs", "--attempts", "many"),
    ("runs", "colour:red"),
    ("runs", "status:faled"),
    ("runs", "status=dead"),
    ("runs", "payload.customer=7"),
    ("runs", "status:", "dead"),
    ("runs", 'error:"open'),
    ("runs", "--type", "mail", "type:bill"),
    ("runs", "--type", "mail", "--type", "bill"),
    ("runs", "--since", "1h", "--since", "2h"),
    ("audit", "--who", "anna", "--who", "ben"),
    ("runs", "--limit", "0"),
    ("run", "12345678901234567890123"),
    ("run", "-1"),
    ("run", "one"),
    ("retry",),
    ("cancel", "0"),
    ("effects", "settle", "1"),
    ("effects", "settle", "one", "--as", "done"),
    ("effects", "settle", "1", "--as", "perhaps"),
    ("types", "limit", "mail", "-1"),
    ("types", "limit", "mail", "1.5"),
    ("types", "keep", "mail"),
    ("types", "keep", "mail", "--dead", "0"),
    ("types", "keep", "mail", "--succeeded", "for ever"),
    ("schedule", "add", "nightly", "--type", "mail", "--new-type", "--cron", "61 * * * *"),
    (
        "schedule",
        "add",
        "nightly",
        "--type",
        "mail",
        "--new-type",
        "--cron",
        "@daily",
        "--timezone",
        "Mars/Base",
    ),
    ("schedule", "add", "Night ly", "--type", "mail", "--new-type", "--cron", "@daily"),
    ("schedule", "add", "nightly", "--type", "nobody_knows_it", "--cron", "@daily"),
    ("schedule", "add", "nightly", "--type", "mail", "--new-type", "--cron", "@daily", "--misfire", "two"),
    ("schedule", "add", "nightly", "--type", "command", "--new-type", "--cron", "@daily"),
    (
        "schedule",
        "add",
        "nightly",
        "--type",
        "http",
        "--new-type",
        "--cron",
        "@daily",
        "--payload",
        '{"url": "ftp://x"}',
    ),
    ("import-crontab", "/no/such/file"),
    ("user", "add", "bob", "--role", "king"),
    ("token", "create", "ci", "--role", "viewer", "--days", "0"),
    ("token", "revoke", "ci"),
    ("--lease-seconds", "0", "config"),
    ("config", "--bind", "nowhere"),
    ("worker", "--app", ""),
    ("worker", "--app", "./jobs"),
    ("worker", "--app", "jobs.py"),
    ("runs", "--database-url", "postgresql://[oops"),
    ("nonsense",),
    ("runs", "--nonsense"),
]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("runs", "--hots"), "No such option '--hots'. See: wakeboard runs --help"),
        (
            ("runs", "--statsu"),
            "No such option '--statsu'. Did you mean '--status'? See: wakeboard runs --help",
        ),
        (("web", "--hots"), "No such option '--hots'. Did you mean '--host'? See: wakeboard web --help"),
    ],
)
def test_an_option_is_suggested_where_the_help_of_the_command_lists_it(
    words: tuple[str, ...], sentence: str, wakeboard: Command
) -> None:
    said = wakeboard(*words)
    assert (said.code, said.err.strip()) == (2, sentence)
    suggested = sentence.partition("mean '")[2].partition("'")[0]
    assert suggested in wakeboard(words[0], "--help").out


@pytest.mark.parametrize("words", WRONG_USES, ids=lambda words: " ".join(words)[:60].encode("unicode_escape"))
def test_wrong_use_is_one_line_and_the_code_2(
    words: tuple[str, ...], wakeboard: Command, connection: Connection
) -> None:
    said = wakeboard(*words)
    assert (said.code, said.out) == (2, "")
    assert len(said.err.strip()) > 20
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert rows(connection, "job_runs") == rows(connection, "job_definitions") == []


@pytest.mark.parametrize(
    "words",
    [
        ("run", "5"), ("retry", "5"), ("cancel", "5"), ("again", "5"), ("release", "5"),
        ("types", "pause", "mail"), ("schedule", "pause", "x"), ("schedule", "preview", "x"),
        ("effects", "settle", "5", "--as", "done"), ("workers", "drain", "x"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_does_not_exist_is_wrong_use_in_one_line(words: tuple[str, ...], wakeboard: Command) -> None:
    said = wakeboard(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err.count("\n") == 1


def test_a_ctrl_c_inside_of_an_import_is_one_word_whatever_became_of_it(
    wakeboard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_words: object, **_how: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise AttributeError("module 'psycopg' has no attribute 'errors'")  # noqa: B904 - as Python says it

    monkeypatch.setattr(cli.cli, "main", loaded)
    assert wakeboard("runs") == Said(130, "", "Stopped.\n")


def test_a_database_that_does_not_answer_is_one_line_and_the_code_1(wakeboard: Command) -> None:
    said = wakeboard("runs", "--database-url", "postgresql://127.0.0.1:1/x")
    assert (said.code, said.out) == (1, "")
    assert said.err.count("\n") == 1


def test_a_database_without_tables_is_told_what_to_run(empty_database: str, wakeboard: Command) -> None:
    said = wakeboard("runs", "--database-url", empty_database)
    assert said.code == 1
    assert "wakeboard db upgrade" in said.err
    assert wakeboard("db", "check", "--database-url", empty_database).code == 1
    assert wakeboard("db", "upgrade", "--database-url", empty_database).code == 0
    assert wakeboard("db", "upgrade", "--database-url", empty_database, "--json").json["changed"] is False
    assert wakeboard("runs", "--database-url", empty_database).code == 0


def ids(said: Said) -> list[int]:
    return [item["id"] for item in said.json["items"]]


def test_each_filter_finds_its_runs(wakeboard: Command, connection: Connection) -> None:
    dead = a_run(connection, "dead", error_code="smtp_down", last_error="greeting 100%_ odd")
    mail = a_run(connection, payload={"customer": {"id": 7}}, idempotency_key="k1")
    bill = a_run(connection, job_type="bill", payload={"n": "x"})
    running = a_run(connection, "running", locked_by="w9")
    for words, found in [
        ((), [running, bill, mail, dead]),
        (("--status", "dead"), [dead]),
        (("--status", "dead,running"), [running, dead]),
        (("status:dead",), [dead]),
        (("status:dead", "--status", "running"), [running, dead]),
        (("status:dead type:mail error:smtp_down",), [dead]),
        (("type:bill", "status:queued"), [bill]),
        (("error:smtp_down", "greeting", "100%_"), [dead]),
        (("odd status:dead",), [dead]),
        (('"100%_ odd"',), [dead]),
        (("even",), []),
        (("--type", "bill"), [bill]),
        (("--error", "smtp_down"), [dead]),
        (("--worker", "w9"), [running]),
        (("--key", "k1"), [mail]),
        (("--payload", "customer.id=7"), [mail]),
        (("payload.customer.id:7",), [mail]),
        (("payload.customer.id:8",), []),
        (("--q", "100%_"), [dead]),
        (("--q", "1%odd"), []),
        (("--since", "1h", "--until", "2999-01-01T00:00Z", "--type", "bill"), [bill]),
        (("--until", "3000d"), []),
        (("--type", "no_such"), []),
    ]:
        assert ids(wakeboard("runs", "--json", *words)) == found, words
    assert ids(wakeboard("runs", "attempts:1+", "--json")) == [running, dead]
    assert ids(wakeboard("runs", "--attempts", "1", "--json")) == [running]


def test_a_list_of_types_is_said_to_be_taken_for_one_name(wakeboard: Command, connection: Connection) -> None:
    a_run(connection, job_type="mail")
    assert "“mail,bill” is taken for the name of one type" in wakeboard("runs", "--type", "mail,bill").err
    assert "mail,bill" not in wakeboard("runs", "--type", "mail").err
    odd = a_run(connection, job_type="mail,bill")
    assert [item["id"] for item in wakeboard("runs", "--type", "mail,bill", "--json").json["items"]] == [odd]


def test_json_has_every_column_of_a_run_and_the_terminal_all_but_a_few(
    wakeboard: Command, connection: Connection
) -> None:
    run = a_run(connection)
    columns = {column.name for column in job_runs.c}
    assert wakeboard("runs", "--json").json["items"][0].keys() == columns
    assert columns <= wakeboard("run", run, "--json").json.keys()
    assert columns - set(SHOWN) == {
        "id", "definition_id", "lease_epoch", "late_by", "overlapped", "error_group", "traceparent",
        "updated_at",
    }  # fmt: skip


def test_a_list_goes_on_where_it_ended(wakeboard: Command, connection: Connection) -> None:
    made = [a_run(connection) for _ in range(5)]
    first = wakeboard("runs", "--limit", "2", "--json").json
    second = wakeboard("runs", "--limit", "3", "--cursor", first["next"], "--json").json
    assert [item["id"] for item in first["items"] + second["items"]] == made[::-1]
    assert second["next"] is None


def test_hostile_text_cannot_act_on_the_terminal(wakeboard: Command, connection: Connection) -> None:
    run = a_run(connection, "dead", error_code="smtp_down", last_error=HOSTILE, payload={"p": HOSTILE})
    for words in (("runs",), ("run", run)):
        said = wakeboard(*words)
        assert said.code == 0
        assert "\x1b" not in said.out
        assert "\r" not in said.out
        assert not any(line.startswith("run 1") for line in said.out.splitlines())
    assert wakeboard("run", run, "--json").json["last_error"] == HOSTILE


@pytest.mark.parametrize("payload", ['{"n": 1e5000}', '{"a":' * 3_000 + "1" + "}" * 3_000])
def test_what_python_cannot_read_hides_no_other_row(
    wakeboard: Command, connection: Connection, payload: str
) -> None:
    a_type(connection, "hello")
    connection.execute("INSERT INTO wakeboard.job_runs (job_type, payload) VALUES ('hello', %s)", (payload,))
    wakeboard("schedule", "add", "nightly", "--type", "hello", "--cron", "0 3 * * *")
    connection.execute("UPDATE wakeboard.job_definitions SET payload = %s", (payload,))
    (run_id,) = ids(wakeboard("--json", "runs"))
    for words in (
        ("runs",), ("run", run_id), ("cancel", run_id), ("again", run_id), ("schedule", "list"),
        ("schedule", "pause", "nightly"), ("schedule", "remove", "nightly"),
    ):  # fmt: skip
        said = wakeboard(*words)
        assert said.code == 0, said
    assert [each["same"] for each in rows_of_payloads(connection, payload)] == [True, True]


def rows_of_payloads(connection: Connection, payload: str) -> list[dict[str, Any]]:
    query = "SELECT payload = %s::jsonb AS same FROM wakeboard.job_runs"
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, (payload,)).fetchall()


def test_a_run_shows_attempts_audit_and_why_it_waits(wakeboard: Command, connection: Connection) -> None:
    a_type(connection, "mail")
    run = a_run(connection, "failed", run_at="10 minutes")
    assert (
        "Backing off after attempt 1 of 10 (smtp_down), next at 20"
        in wakeboard("run", run, "--json").json["waits"]
    )
    assert wakeboard("retry", run, "--reason", "the server is back").code == 0
    assert "No worker is alive at all" in wakeboard("run", run, "--json").json["waits"]
    a_worker(connection, job_types=["bill"])
    assert "No live worker runs this type. 1 worker is alive" in wakeboard("run", run, "--json").json["waits"]
    a_worker(connection, job_types=["mail"])
    assert "the next free worker takes it" in wakeboard("run", run, "--json").json["waits"]
    wakeboard("types", "limit", "mail", "0")
    assert "The limit of its type is 0" in wakeboard("run", run, "--json").json["waits"]
    wakeboard("types", "pause", "mail", "--reason", "month end")
    assert "month end" in wakeboard("run", run, "--json").json["waits"]
    said = wakeboard("run", run)
    assert "the server is back" in said.out
    assert "smtp_down" in said.out


def test_a_type_keeps_its_runs_for_days_of_its_own(wakeboard: Command, connection: Connection) -> None:
    a_type(connection, "mail")

    def days() -> tuple[int | None, int | None]:
        (found,) = wakeboard("types", "list", "--json").json["items"]
        return found["keep_succeeded_days"], found["keep_dead_days"]

    assert wakeboard("types", "retention", "mail", "--succeeded", "3", "--dead", "9").code == 0
    assert days() == (3, 9)
    said = wakeboard("types", "keep", "mail", "--dead", "10")
    assert "Type mail keeps succeeded runs for 3 days, dead and cancelled ones for 10 days now." in said.out
    assert wakeboard("types", "keep", "mail", "--default", "--dead", "1").code == 0
    assert days() == (None, 1)
    wakeboard("types", "keep", "mail", "--default")
    assert days() == (None, None)
    assert "no worker has ever registered it" in wakeboard("types", "keep", "nobody", "--default").err


def test_workers_are_listed_by_how_they_stand_the_silent_ones_first(
    wakeboard: Command, connection: Connection
) -> None:
    for name, columns in {
        "idle": {}, "busy": {"running": 2}, "silent": {"seen": "-1 minute"},
        "draining": {"drain_requested_at": "0 seconds"},
        "stopping": {"stopping_at": "0 seconds", "running": 1},
        "gone": {"seen": "-2 days"},
        "stopped": {"stopped_at": "-5 minutes"},
        "stopped long ago": {"stopped_at": "-5 hours"},
    }.items():  # fmt: skip
        a_worker(connection, id=name, **columns)
    found = wakeboard("workers", "list", "--json").json["items"]
    assert [each["id"] for each in found] == [*worker_states.NAMES]
    assert all(each["id"] == each["state"] for each in found)
    assert len(wakeboard("workers", "list", "--all", "--json").json["items"]) == len(found) + 1
    assert wakeboard("workers", "list").out.splitlines()[1].startswith("silent")
    assert "it missed two heartbeats" in wakeboard("workers", "list", "--help").out.replace("\n  ", " ")


def test_workers_are_drained_undrained_and_stopped_by_their_ids(
    wakeboard: Command, connection: Connection
) -> None:
    for name in ("w1", "w2"):
        a_worker(connection, id=name)

    def states() -> list[str]:
        return [each["state"] for each in wakeboard("workers", "list", "--json").json["items"]]

    assert wakeboard("workers", "drain", "w1", "w2", "--reason", "new kernel").code == 0
    assert states() == ["draining", "draining"]
    assert wakeboard("workers", "undrain", "w2").code == 0
    assert sorted(states()) == ["draining", "idle"]
    assert wakeboard("workers", "stop", "w1").code == 0
    assert sorted(states()) == ["idle", "stopping"]
    said = wakeboard("workers", "stop", "w3")
    assert said.code == 2 and "There is no worker 'w3'." in said.err
    told = [(row["action"], row["target_id"], row["reason"]) for row in rows(connection, "audit_log")]
    assert ("worker.drain", "w2", "new kernel") in told and ("worker.stop", "w1", None) in told


def test_all_types_are_paused_for_a_time_and_exactly_those_resumed_also_by_the_first_names(
    wakeboard: Command, connection: Connection
) -> None:
    for name in ("mail", "report", "sync"):
        a_type(connection, name)
    wakeboard("types", "pause", "sync", "--reason", "provider down")

    def ends() -> dict[str, bool]:
        found = wakeboard("types", "list", "--json").json["items"]
        return {
            type_["name"]: type_["paused_until"] is not None for type_ in found if type_["state"] == "paused"
        }

    said = wakeboard("types", "pause-all", "--reason", "a move", "--for", "2h")
    assert (said.code, said.out) == (0, "2 types are paused; what runs goes on.\n")
    assert ends() == {"mail": True, "report": True, "sync": False}
    assert "Every type is paused already." in wakeboard("types", "hold").out
    assert wakeboard("types", "resume-all", "--reason", "moved").out == "2 types are claimed again.\n"
    assert ends() == {"sync": False}
    assert wakeboard("types", "let-go", "--json").json["changed"] is False
    (held,) = rows(connection, "audit_log", "action = 'type.hold' AND result = 'done'")
    assert (held["source"], held["reason"], held["after"]["types"]) == ("cli", "a move", ["mail", "report"])
    assert wakeboard("types", "pause-all", "--for", "soon").code == 2


def test_verbs_say_what_is_so_now_and_are_audited(wakeboard: Command, connection: Connection) -> None:
    run = a_run(connection)
    assert wakeboard("cancel", run, "--reason", "twice").out == f"Run {run} is cancelled.\n"
    assert "already cancelled" in wakeboard("cancel", run).out
    assert row(connection, run)["status"] == "cancelled"
    assert wakeboard("again", run).code == 0
    assert wakeboard("retry", run, "--json").json["status"] == "queued"
    audit = rows(connection, "audit_log", "target_id = %s", str(run), order="id")
    assert [entry["action"] for entry in audit] == ["run.cancel", "run.cancel", "run.again", "run.retry"]
    assert {entry["source"] for entry in audit} == {"cli"}
    assert audit[0]["reason"] == "twice"


def test_of_many_the_ones_that_cannot_be_make_the_code_1(wakeboard: Command, connection: Connection) -> None:
    waiting, done = a_run(connection), a_run(connection, "succeeded")
    said = wakeboard("cancel", waiting, done)
    assert said.code == 1
    assert "is cancelled" in said.out
    assert "already ended" in said.err
    lines = wakeboard("retry", waiting, done, "--json").out.splitlines()
    assert [json.loads(line)["changed"] for line in lines] == [True, False]


def test_leases_tell_a_silent_worker_from_a_living_one(wakeboard: Command, connection: Connection) -> None:
    a_worker(connection, "alive")
    a_worker(connection, "gone", seen="-5 minutes")
    runs = {name: a_run(connection, "running", locked_by=name) for name in ("alive", "gone")}
    found = {item["id"]: item["state"] for item in wakeboard("leases", "--json").json["items"]}
    assert found == {runs["alive"]: "renewed", runs["gone"]: "silent"}
    said = wakeboard("leases").out
    assert "The other live worker takes it over" in said
    assert "RENEWED_SECONDS_AGO" in said
    assert wakeboard("release", runs["alive"]).code == 1
    assert wakeboard("release", runs["gone"]).code == 0
    assert row(connection, runs["gone"])["status"] == "failed"


def test_leases_count_late_answers_that_were_refused_and_list_them(
    wakeboard: Command, connection: Connection
) -> None:
    assert wakeboard("leases", "--json").json["refused_24h"] == 0
    assert "No late answer was refused" in wakeboard("leases", "--refused").err
    run_id = a_run(connection, "succeeded", attempts=2, lease_epoch=2)
    connection.execute("DELETE FROM wakeboard.job_attempts WHERE run_id = %s", (run_id,))
    late = {"refused_at": from_now("-1 hour"), "refused_outcome": "succeeded"}
    an_attempt(connection, run_id, outcome="lost", error_code="lease_lost", error="gone", **late)
    assert "Late answers refused in 24 h: 1" in wakeboard("leases").out
    (found,) = wakeboard("leases", "--refused", "--json").json["items"]
    assert (found["id"], found["refused_outcome"]) == (run_id, "succeeded")


def test_the_help_of_leases_explains_each_state(wakeboard: Command) -> None:
    said = " ".join(wakeboard("leases", "--help").out.split())
    assert all(f"{state.name}: {state.meaning}".lower() in said.lower() for state in STATES)


def an_effect(connection: Connection, run_id: int, key: str, **columns: Any) -> int:
    values = {
        "scope": f"run:{run_id}", "key": key, "run_id": run_id, "attempt": 1, "lease_epoch": 1,
        "status": "started",
    }  # fmt: skip
    return int(insert(connection, "effects", values | columns))


def test_unconfirmed_effects_are_listed_and_those_being_made_are_not(
    wakeboard: Command, connection: Connection
) -> None:
    assert "Every effect is confirmed" in wakeboard("effects", "list").err
    dead, running = a_run(connection, "dead"), a_run(connection, "running", lease_epoch=2, attempts=2)
    cut_off = an_effect(connection, dead, "mail")
    of_the_attempt_before = an_effect(connection, running, "before", lease_epoch=1)
    an_effect(connection, running, "now", lease_epoch=2)
    an_effect(connection, dead, "confirmed", status="done")
    of_nobody = an_effect(connection, 999_999, HOSTILE, scope="global")
    found = wakeboard("effects", "list", "--json").json["items"]
    assert [item["id"] for item in found] == [of_nobody, of_the_attempt_before, cut_off]
    assert [item["run_status"] for item in found] == [None, "running", "dead"]
    (mine,) = wakeboard("effects", "list", "--run", dead, "--json").json["items"]
    assert (mine["id"], mine["key"], mine["counts_for"]) == (cut_off, "mail", "this run alone")
    said = wakeboard("effects", "list").out
    assert "every run" in said
    assert "\x1b" not in said


def test_a_person_settles_effects_in_a_terminal_and_it_is_audited(
    wakeboard: Command, connection: Connection
) -> None:
    run = a_run(connection, "dead")
    sent, unsent = an_effect(connection, run, "mail"), an_effect(connection, run, "invoice")
    said = wakeboard("effects", "settle", sent, "--as", "done", "--reason", "it is in the sent folder")
    assert said.out == f"Effect 'mail' of run {run} is settled as done; it will not be made again.\n"
    assert wakeboard("effects", "settle", unsent, "--as", "not-made", "--json").json["result"] == "done"
    again = wakeboard("effects", "settle", sent, "--as", "not-made")
    assert (again.code, "is done already, settled by" in again.out) == (0, True)
    (stored,) = rows(connection, "effects")
    assert (stored["id"], stored["status"]) == (sent, "done")
    audit = rows(connection, "audit_log", "action = 'effect.settle'", order="id")
    assert [entry["reason"] for entry in audit] == ["it is in the sent folder", None, None]
    assert {entry["source"] for entry in audit} == {"cli"}
    assert wakeboard("effects", "list", "--json").json["items"] == []


def test_an_effect_that_is_being_made_is_not_settled_in_a_terminal(
    wakeboard: Command, connection: Connection
) -> None:
    effect = an_effect(connection, a_run(connection, "running"), "mail")
    said = wakeboard("effects", "settle", effect, "--as", "not-made")
    assert (said.code, "right now" in said.err) == (1, True)
    assert len(rows(connection, "effects")) == 1


def test_a_schedule_is_created_changed_and_left_alone(wakeboard: Command, connection: Connection) -> None:
    a_type(connection, "mail")
    add = ("schedule", "add", "nightly", "--type", "mail", "--json", "--cron")
    assert wakeboard(*add, "0 2 * * *").json["status"] == "created"
    assert wakeboard(*add, "0 2 * * *").json["status"] == "unchanged"
    assert wakeboard(*add, "0 3 * * *", "--timeout", "5m").json["status"] == "changed"
    (made,) = rows(connection, "job_definitions")
    assert (made["schedule"], made["timeout_seconds"]) == ("0 3 * * *", 300)
    assert wakeboard("schedule", "pause", "nightly").code == 0
    assert wakeboard("schedule", "list", "--json").json["items"][0]["enabled"] is False
    run = wakeboard("schedule", "run", "nightly", "--json").json["id"]
    assert row(connection, run)["definition_id"] == made["id"]
    assert wakeboard("schedule", "remove", "nightly").code == 0
    assert rows(connection, "job_definitions") == []


def test_a_preview_says_what_the_change_of_clocks_does(wakeboard: Command, connection: Connection) -> None:
    a_type(connection, "mail")
    wakeboard("schedule", "add", "n", "--type", "mail", "--cron", "30 2 * * *", "--timezone", "Europe/Paris")
    march = ("--from", "2026-03-28T00:00Z", "--to", "2026-03-30T12:00Z")
    items = wakeboard("schedule", "preview", "n", "--json", *march).json["items"]
    assert [item["at"] for item in items] == [
        "2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z",
    ]  # fmt: skip
    assert "does not exist" in items[1]["note"]
    assert items[1]["note"] in wakeboard("schedule", "preview", "n", *march).out
    assert len(wakeboard("schedule", "preview", "n", "--json").json["items"]) == 10
    # A day begins when it does there: at 23:00 UTC of the day before, at 22:00 once the clocks have changed.
    days = ("--from", "2026-03-28", "--to", "2026-03-31")
    said = wakeboard("schedule", "preview", "n", "--json", *days).json
    assert [item["at"] for item in said["items"]] == [item["at"] for item in items]
    assert (said["timezone"], said["description"], said["enabled"]) == (
        "Europe/Paris", "At 02:30 every day", True,
    )  # fmt: skip
    for far in ("0001-01-01", "9999-12-31"):
        refused = wakeboard("schedule", "preview", "n", "--from", far)
        assert refused.code == 2 and "give a year from 1900 to 9000" in refused.err
    wrong = wakeboard("schedule", "preview", "n", "--from", "2026-03-28T00:00")
    assert wrong.code == 2 and "is not a time with a zone" in wrong.err
    connection.execute("UPDATE wakeboard.job_definitions SET schedule = NULL, next_fire_at = NULL")
    assert wakeboard("schedule", "preview", "n", "--json").json == {
        "name": "n", "timezone": "Europe/Paris", "description": None, "enabled": True, "items": [],
    }  # fmt: skip


CRONTAB = (
    "# nightly\nMAILTO=me@example.com\n0 3 * * * echo nightly\n61 * * * * nonsense\n@hourly echo hourly\n"
)


def test_a_crontab_is_imported_line_by_line_and_twice_changes_nothing(
    wakeboard: Command, connection: Connection, tmp_path: Path
) -> None:
    file = tmp_path / "crontab"
    file.write_text(CRONTAB)
    said = wakeboard("import-crontab", file, "--dry-run")
    assert said.code == 0
    assert "line 4: refused" in said.out
    assert said.out.count(": would be created ") == 2
    assert rows(connection, "job_definitions") == rows(connection, "audit_log") == []
    said = wakeboard("import-crontab", file, "--json")
    assert [(item["line"], item["result"]) for item in said.json["items"]] == [
        (2, "noted"), (3, "created"), (4, "refused"), (5, "created"),
    ]  # fmt: skip
    # Whoever comments out what is active would else lose what was refused.
    assert (said.json["active_in_cron"], said.json["left_to_cron"]) == ([3, 5], [4])
    made = rows(connection, "job_definitions")
    assert {(each["job_type"], each["max_attempts"], each["overlap"]) for each in made} == {
        ("command", 1, "skip")
    }
    again = wakeboard("import-crontab", file)
    assert again.out.count(": unchanged ") == 2
    assert "Still active in cron: lines 3, 5." in again.out
    assert rows(connection, "job_definitions") == made


def test_a_crontab_with_a_zone_of_its_own_says_so_line_by_line(
    wakeboard: Command, connection: Connection, tmp_path: Path
) -> None:
    file = tmp_path / "crontab"
    file.write_text("0 3 * * * echo here\nCRON_TZ=Asia/Tokyo\n0 4 * * * echo there\n")
    chosen = ("import-crontab", file, "--timezone", "Europe/Paris", "--dry-run")
    said = wakeboard(*chosen).out.splitlines()
    assert said[0].endswith("echo here") and said[1].endswith("echo there [times of Asia/Tokyo]")
    answer = wakeboard(*chosen, "--json").json
    assert [item["timezone"] for item in answer["items"]] == ["Europe/Paris", "Asia/Tokyo"]
    assert answer["timezone"] == "Europe/Paris" and "Times are in the zone Europe/Paris" in said[-1]
    file.write_text("CRON_TZ=Asia/Tokyo\n0 4 * * * echo there\n")
    assert "Europe/Paris" not in wakeboard(*chosen).out, "no line is in it"
    assert wakeboard(*chosen, "--json").json["timezone"] is None


SYSTEM_CRONTAB = """\
# Nightly database dump
0 3 * * * www-data /usr/local/bin/dump --all
0 3 * * * www-data /usr/bin/flock -n /run/lock /usr/local/bin/sync
0 3 * * * root /usr/local/bin/dump --all
0 3 * * * 33 /usr/local/bin/dump --all
"""


def test_each_line_of_a_system_crontab_becomes_a_command_of_its_user(
    wakeboard: Command, connection: Connection, tmp_path: Path
) -> None:
    file = tmp_path / "crontab"
    file.write_text(SYSTEM_CRONTAB)
    a_worker(connection, job_types=["command", "command:root"])
    said = wakeboard("import-crontab", file, "--system")
    assert "line 5: refused: A system crontab has a user in its sixth field; '33' is not the name" in said.out
    assert (
        "As www-data: lines 2, 3; start a worker as that user, or a worker as root with "
        "WAKEBOARD_RUN_AS_USERS=www-data." in said.out
    )
    assert "As root: line 4; a worker that runs them is there." in said.out
    made = rows(connection, "job_definitions")
    assert [(each["job_type"], each["name"].rpartition("-")[0]) for each in made] == [
        ("command:www-data", "nightly-database-dump"), ("command:www-data", "sync"), ("command:root", "dump"),
    ]  # fmt: skip
    file.write_text(SYSTEM_CRONTAB.replace("Nightly database dump", "Called otherwise"))
    again = wakeboard("import-crontab", file, "--system", "--json").json
    assert [item["result"] for item in again["items"]] == ["unchanged"] * 3 + ["refused"]
    assert [(user["user"], user["lines"], user["is_served"]) for user in again["users"]] == [
        ("www-data", [2, 3], False), ("root", [4], True),
    ]  # fmt: skip
    assert rows(connection, "job_definitions") == made, "the comment gives a name at the first import alone"
    elsewhere = tmp_path / "cron.d"
    elsewhere.write_text("0 3 * * * nobody /usr/local/bin/dump --all\n")
    assert wakeboard("import-crontab", elsewhere, "--system").code == 0
    assert rows(connection, "job_definitions")[:3] == made, "the same of another user is another schedule"


def imported_without_user(connection: Connection, command: str, name: str) -> None:
    """Add what imports made while they left the user out."""
    payload = {"argv": ["/bin/sh", "-c", command], "env": {"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}}
    definition = Definition(
        name,
        "command",
        "0 3 * * *",
        payload,
        "UTC",
        "none",
        300,
        "skip",
        max_attempts=1,
        timeout_seconds=86_400,
    )
    definitions.add(connection, definition, terminal_actor(), "imported from a crontab")


def test_what_was_imported_without_its_user_is_told_and_gets_it_by_another_import(
    wakeboard: Command, connection: Connection, tmp_path: Path
) -> None:
    def says() -> tuple[str, str]:
        (found,) = [i for i in wakeboard("doctor", "--json").json["items"] if i["check"] == "commands"]
        return found["level"], found["says"]

    plain = "0 3 * * *\n/usr/local/bin/dump --all"
    name = f"dump-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"
    imported_without_user(connection, "/usr/local/bin/dump --all", name)
    imported_without_user(connection, "mine", "mine-7d2f0c11")
    before = rows(connection, "job_definitions")
    assert says()[0] == "ok", "no worker of root runs them"
    a_worker(connection, job_types=["command", "command:root"])
    told = "Imported from a crontab without their user, and run by a worker of root"
    assert says() == ("warning", f"{told}: {name}, mine-7d2f0c11.")
    file = tmp_path / "crontab"
    file.write_text(SYSTEM_CRONTAB)
    said = wakeboard("import-crontab", file, "--system", "--timezone", "UTC", "--json").json
    assert [(item["line"], item["result"], item["name"] == name) for item in said["items"]][:2] == [
        (2, "changed", True), (3, "created", False),
    ]  # fmt: skip
    after = {each["name"]: each for each in rows(connection, "job_definitions")}
    assert after[name] == before[0] | {
        "job_type": "command:www-data",
        "updated_at": after[name]["updated_at"],
    }
    assert says()[1].endswith(": mine-7d2f0c11.")
    again = wakeboard("import-crontab", file, "--system", "--timezone", "UTC", "--json").json
    assert [item["result"] for item in again["items"]] == ["unchanged"] * 3 + ["refused"]


def test_a_person_s_own_crontab_keeps_its_type_and_is_no_finding(
    wakeboard: Command, connection: Connection, tmp_path: Path
) -> None:
    file = tmp_path / "crontab"
    file.write_text("0 3 * * * /usr/local/bin/dump --all\n")
    plain = "0 3 * * *\n/usr/local/bin/dump --all"
    mark = hashlib.sha256(plain.encode()).hexdigest()[:8]
    imported_without_user(connection, "/usr/local/bin/dump --all", f"named-{mark}")
    a_worker(connection, job_types=["command", "command:root"])
    said = wakeboard("import-crontab", file, "--timezone", "UTC")
    assert f"unchanged named-{mark}" in said.out and "They run as the user of their worker" in said.out
    found = {item["check"]: item["level"] for item in wakeboard("doctor", "--json").json["items"]}
    assert found["commands"] == "ok", "whose crontab it was is known now"
    system = tmp_path / "system"
    system.write_text("0 3 * * * www-data /usr/local/bin/dump --all\n")
    assert wakeboard("import-crontab", system, "--system", "--json").json["items"][0]["result"] == "created"
    assert rows(connection, "job_definitions")[0]["job_type"] == "command"


def test_exit_codes_of_lines_that_end_so_are_noted_and_can_be_taken_for_success(
    wakeboard: Command, connection: Connection, tmp_path: Path
) -> None:
    def codes() -> list[Any]:
        return [each["payload"].get("ok_codes") for each in rows(connection, "job_definitions")]

    file = tmp_path / "crontab"
    file.write_text("0 3 * * * flock -n /run/lock /usr/local/bin/sync\n0 4 * * * /usr/local/bin/dump\n")
    said = wakeboard("import-crontab", file)
    assert (
        "'flock' ends with 1 when another holds the lock, which is a failure here: if it is none, import "
        'with --ok-codes 0,1, or add "ok_codes": [0, 1] to its payload' in said.out
    )
    assert codes() == [None, None]
    said = wakeboard("import-crontab", file, "--ok-codes", "0,1")
    assert "exit codes 0, 1 are success" in said.out and codes() == [[0, 1], None]
    assert wakeboard("import-crontab", file).out.count(": unchanged ") == 2, "what was set there stays"
    for wrong in ("", "one", "0,256", "-1"):
        assert wakeboard("import-crontab", file, "--ok-codes", wrong).code == 2
    assert codes() == [[0, 1], None]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (
            "0 3 * * * id\n".encode("utf-16"),
            "is text in UTF-16, and a crontab is UTF-8: convert it with iconv",
        ),
        ("0 3 * * * id\n".encode("utf-16-le"), "is text in UTF-16"),
        (b"0 3 * * * id\r0 4 * * * id\r", "has a carriage return alone at its line ends"),
        (b"# x\n@monthly 15 cron.monthly nice run-parts /x\n", "is an anacrontab, no crontab: line 2 has a"),
        (b"1\t5\tcron.daily\tnice run-parts /etc/cron.daily\n", "is an anacrontab, no crontab: line 1 has a"),
    ],
)
def test_a_file_that_is_no_crontab_is_named_and_nothing_of_it_is_taken(
    wakeboard: Command, connection: Connection, tmp_path: Path, data: bytes, why: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    said = wakeboard("import-crontab", file)
    assert said.code == 2 and why in said.err
    assert rows(connection, "job_definitions") == []


def test_one_line_as_in_an_anacrontab_costs_a_crontab_no_other_line(
    wakeboard: Command, connection: Connection, tmp_path: Path
) -> None:
    file = tmp_path / "crontab"
    file.write_text("0 3 * * * id\n@daily 15 backup.sh --all\n")
    said = wakeboard("import-crontab", file)
    assert "line 2: refused: It is a line of an anacrontab" in said.out
    assert [row["schedule"] for row in rows(connection, "job_definitions")] == ["0 3 * * *"]


def test_a_line_of_the_machine_s_start_comes_back_as_a_unit(wakeboard: Command, tmp_path: Path) -> None:
    file = tmp_path / "crontab"
    file.write_text("# Warm the cache\n@reboot www-data /opt/warm --all\n0 3 * * * www-data id\n")
    said = wakeboard("import-crontab", file, "--system", "--dry-run")
    assert "as the unit warm-the-cache.service of systemd" in said.out
    assert "A unit of systemd for line 2 (then: systemctl enable):\n# /etc/systemd/" in said.out
    assert "User=www-data\n" in said.out and 'ExecStart="/bin/sh" "-c" "/opt/warm --all"\n' in said.out
    items = wakeboard("import-crontab", file, "--system", "--dry-run", "--json").json["items"]
    assert (
        items[0]["unit"].startswith("# /etc/systemd/system/warm-the-cache.service\n[Unit]\n")
        and "unit" not in items[1]
    )


def test_a_command_of_a_user_is_added_by_its_name(wakeboard: Command, connection: Connection) -> None:
    add = ("schedule", "add", "nightly", "--cron", "@daily", "--payload", '{"argv": ["id"]}')
    assert wakeboard(*add, "--type", "command", "--user", "www-data").code == 0
    assert rows(connection, "job_definitions")[0]["job_type"] == "command:www-data"
    said = wakeboard(*add, "--type", "mail", "--user", "www-data")
    assert said.code == 2 and "--user goes with --type command" in said.err
    said = wakeboard(*add, "--type", "command", "--user", "33")
    assert said.code == 2 and "'33' is not the name of an OS user" in said.err


def test_people_and_tokens_are_made_in_a_terminal(
    wakeboard: Command, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    def typed(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    typed("tea and biscuits at four\n")
    assert wakeboard("user", "add", "alice", "--role", "operator", "--password-stdin").code == 0
    assert users.check_password(connection, "alice", "tea and biscuits at four", None)
    typed("short\n")
    said = wakeboard("user", "passwd", "alice", "--password-stdin")
    assert (said.code, "12 to 128" in said.err) == (2, True)
    assert wakeboard("user", "role", "alice", "--role", "viewer").code == 0
    assert wakeboard("user", "disable", "alice").code == 0
    assert wakeboard("user", "list", "--json").json["items"][0]["disabled_at"] is not None
    assert "password_hash" not in wakeboard("user", "list", "--json").out
    token = wakeboard("token", "create", "ci", "--role", "viewer", "--json").json["token"]
    assert tokens.authenticate_token(connection, token)
    assert token not in wakeboard("token", "list").out
    assert wakeboard("token", "revoke", "ci").code == 0


def test_a_login_link_leads_to_the_dashboard(wakeboard: Command, connection: Connection) -> None:
    said = wakeboard("login-link", "--bind", "0.0.0.0:8099", "--json").json
    assert said["url"] == f"http://127.0.0.1:8099/login?token={said['token']}"
    assert sessions.peek_login_link(connection, said["token"])


def test_a_login_link_to_where_nothing_answers_says_so(
    wakeboard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        said = wakeboard("login-link", "--bind", address)
        assert (said.code, said.err) == (0, "")
    said = wakeboard("login-link", "--bind", address)
    assert said.code == 0 and said.out.startswith(f"http://{address}/login?token=")
    assert f"Nothing answers at http://{address}" in said.err and "--bind HOST:PORT" in said.err
    monkeypatch.setenv("WAKEBOARD_PUBLIC_URL", f"http://{address}")
    assert wakeboard("login-link").err == "", "people may reach it from where they are"


def test_a_login_link_leads_to_where_people_reach_the_pages(
    wakeboard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAKEBOARD_PUBLIC_URL", "https://jobs.example.org/")
    assert wakeboard("login-link").out.startswith("https://jobs.example.org/login?token=")
    assert wakeboard("login-link", "--bind", "127.0.0.1:8099").out.startswith("http://127.0.0.1:8099/login")


def test_settings_are_listed_with_their_origin_and_secrets_masked(
    wakeboard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", "postgresql://jobs:hunter2@db.example.org:5433/jobs")
    monkeypatch.setenv("WAKEBOARD_HEARTBEAT_URL", "https://ping.example.org/hunter2")
    said = wakeboard("config", "--poll-seconds", "3", "--json")
    found = {item["name"]: (item["value"], item["origin"]) for item in said.json["items"]}
    assert found["WAKEBOARD_POLL_SECONDS"] == ("3.0", "flag")
    assert found["WAKEBOARD_DATABASE_URL"] == (
        "postgresql://jobs:***@db.example.org:5433/jobs", "environment",
    )  # fmt: skip
    assert found["WAKEBOARD_HEARTBEAT_URL"] == ("***", "environment")
    assert "hunter2" not in said.out


def test_flags_may_stand_before_the_verb(wakeboard: Command, connection: Connection) -> None:
    a_run(connection)
    assert len(wakeboard("--json", "runs").json["items"]) == 1


def test_doctor_finds_what_is_broken_and_says_the_mend(
    wakeboard: Command, superuser: Connection, tmp_path: Path
) -> None:
    assert wakeboard("doctor").code == 0
    superuser.execute("DROP INDEX wakeboard.job_runs_claimable")
    said = wakeboard("doctor", "--json", "--app", "no_such_module")
    failed = {item["check"]: item["mend"] for item in said.json["items"] if item["level"] == "fail"}
    assert said.code == 1
    assert set(failed) == {"indexes", "app"}
    assert all(failed.values())


def test_a_token_that_never_expires_is_told_where_it_is_made_listed_and_by_doctor(
    wakeboard: Command, connection: Connection
) -> None:
    def says() -> tuple[str, str]:
        (found,) = [i for i in wakeboard("doctor", "--json").json["items"] if i["check"] == "tokens"]
        return found["level"], found["says"]

    create = ("token", "create", "--role", "viewer")
    assert "never expires" not in wakeboard(*create, "ends", "--days", "90").err
    assert says() == ("ok", "None is valid for ever.")
    assert "It never expires" in wakeboard(*create, "endless").err
    wakeboard(*create, "revoked")
    wakeboard("token", "revoke", "revoked")
    assert says() == ("warning", "Valid until somebody revokes them: endless.")
    assert wakeboard("doctor").code == 0
    listed = {line.split()[0]: line for line in wakeboard("token", "list").out.splitlines()}
    assert [name for name, line in listed.items() if " never " in line] == ["endless"]
    items = {item["name"]: item for item in wakeboard("token", "list", "--json").json["items"]}
    assert items["endless"]["expires_at"] is None and items["ends"]["expires_at"]


def test_a_schema_from_the_future_is_mended_by_no_upgrade(
    wakeboard: Command, connection: Connection, superuser: Connection
) -> None:
    assert wakeboard("db", "check", "--json").json["newer"] is False
    connection.execute("UPDATE wakeboard.alembic_version SET version_num = '0999'")
    # What a later version has taken away is no reason to run what it refuses.
    superuser.execute("DROP INDEX wakeboard.job_runs_claimable")
    mend = "Install that version here too."
    said = wakeboard("db", "check")
    assert said.code == 1 and said.out.rstrip().endswith(f"it was migrated by a newer Wakeboard. {mend}")
    known = wakeboard("db", "check", "--json").json
    assert (known["revision"], known["current"], known["newer"]) == ("0999", False, True)
    found = {item["check"]: item for item in wakeboard("doctor", "--json").json["items"]}
    assert found["schema"]["level"] == "fail" and "a newer Wakeboard" in found["schema"]["says"]
    assert (found["schema"]["mend"], found["indexes"]["mend"]) == (mend, mend)
    assert "db upgrade" not in f"{said}{known}{found}"
    refused = wakeboard("db", "upgrade")
    assert refused.code == 1 and mend in refused.err


def test_a_schema_without_a_revision_is_mended_by_an_upgrade(
    wakeboard: Command, connection: Connection
) -> None:
    connection.execute("DELETE FROM wakeboard.alembic_version")
    assert "Run: wakeboard db upgrade" in wakeboard("db", "check").out
    found = {item["check"]: item for item in wakeboard("doctor", "--json").json["items"]}
    assert found["schema"]["mend"] == "Run: wakeboard db upgrade"


def test_a_schema_of_before_the_first_release_is_told_how_to_be_stamped(
    wakeboard: Command, connection: Connection
) -> None:
    connection.execute("UPDATE wakeboard.alembic_version SET version_num = '0022'")
    mend = "then run: UPDATE wakeboard.alembic_version SET version_num = '0100'"
    assert mend in wakeboard("db", "check").out
    refused = wakeboard("db", "upgrade")
    assert refused.code == 1 and mend in refused.err
    found = {item["check"]: item for item in wakeboard("doctor", "--json").json["items"]}
    assert mend in found["schema"]["mend"]


SHOP = "from wakeboard import job\n\n@job('hello')\ndef hello(ctx): return 1\n"


@pytest.mark.parametrize(
    ("module", "level", "sentence"),
    [
        (SHOP, "ok", "shop is importable: 1 job type of its own."),
        (f"import atexit\natexit.register(print, 'bye now')\nprint('9 lives')\n{SHOP}", "ok", "1 job type"),
        (f"import os, atexit\natexit.register(os._exit, 3)\n{SHOP}", "ok", "1 job type of its own."),
        ("import sys\nsys.exit(0)\n", "fail", "shop cannot be imported: SystemExit: 0."),
        ("import sys\nsys.exit()\n", "fail", "shop cannot be imported: SystemExit."),
        ("raise ValueError('no\\nprice.')\n", "fail", "shop cannot be imported: ValueError: no price."),
        ("import os\nos._exit(0)\n", "fail", "the process that tried it ended with code 0 without a word."),
        ("import os\nos.write(2, b'out of\\nstock')\nos.abort()\n", "fail", "was killed by SIGABRT: stock."),
        ("PRICE = 3\n", "fail", "has no handler."),
    ],
)
def test_doctor_says_of_the_app_what_its_import_came_to_whatever_it_prints_or_ends_with(
    module: str, level: str, sentence: str, wakeboard: Command, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(module)
    with contextlib.chdir(tmp_path):
        said = wakeboard("doctor", "--json", "--app", "shop")
    [found] = [item for item in said.json["items"] if item["check"] == "app"]
    assert (found["level"], said.code) == (level, 0 if level == "ok" else 1)
    assert sentence in found["says"]


def test_doctor_says_when_the_database_is_away(wakeboard: Command) -> None:
    said = wakeboard("doctor", "--json", "--database-url", "postgresql://127.0.0.1:1/x")
    assert said.code == 1
    assert said.json["result"] == "fail"


def test_who_may_not_make_the_schema_reads_what_to_grant(
    wakeboard: Command, server: Server, empty_database: str
) -> None:
    base = psycopg.conninfo.conninfo_to_dict(empty_database)["dbname"]
    with db.connect(server.url(str(base), admin=True), name="wakeboard superuser") as superuser:
        superuser.execute("CREATE ROLE may_nothing LOGIN")
        try:
            poor = psycopg.conninfo.make_conninfo(empty_database, options="-c role=may_nothing")
            superuser.execute(
                sql.SQL("GRANT may_nothing TO {}").format(sql.Identifier(_role(empty_database)))
            )
            said = wakeboard("db", "upgrade", "--database-url", poor)
            found = wakeboard("doctor", "--json", "--database-url", poor).json["items"]
        finally:
            superuser.execute("DROP ROLE may_nothing")
    assert said.code == 1
    assert "bug" not in said.err
    assert "GRANT CREATE ON DATABASE" in said.err
    [privileges] = [item for item in found if item["check"] == "privileges"]
    assert privileges["mend"] == f"As the database's owner: GRANT CREATE ON DATABASE {base} TO may_nothing"


def _role(url: str) -> str:
    with psycopg.connect(url) as connection:
        return connection.info.user


def test_a_misspelt_setting_is_told_once_by_every_command_and_by_doctor(
    wakeboard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAKEBOARD_DATABSE_URL", "postgresql://elsewhere/x")
    said = wakeboard("runs", "--json")
    assert (said.code, said.json["items"]) == (0, [])
    assert said.err.count("Did you mean WAKEBOARD_DATABASE_URL?") == said.err.count("\n") == 1
    found = wakeboard("doctor", "--json").json["items"]
    assert [item["level"] for item in found if item["check"] == "configuration"] == ["ok", "warning"]


def test_doctor_and_the_types_tell_workers_that_take_nothing_new(
    wakeboard: Command, connection: Connection
) -> None:
    def says() -> tuple[str, str, str]:
        items = wakeboard("doctor", "--json").json["items"]
        (found,) = [item for item in items if item["check"] == "workers"]
        return found["level"], found["says"], found["mend"]

    a_type(connection, "mail")
    a_worker(connection, stopping_at="-1 second")
    drops = "and none takes new work: they drain or stop."
    assert says() == ("warning", f"1 alive, {drops}", "Run: wakeboard worker --app MODULE")
    a_worker(connection, drain_requested_at="-1 minute")
    mend = "Run: wakeboard workers undrain WORKER, or wakeboard worker --app MODULE"
    assert says() == ("warning", f"2 alive, {drops}", mend)
    (mail,) = wakeboard("types", "list", "--json").json["items"]
    assert [mail[name] for name in ("workers", "claiming_workers", "draining_workers")] == [2, 0, 1]
    a_worker(connection)
    assert says()[:2] == ("ok", "3 alive.")


def test_doctor_says_of_a_server_that_is_too_old_to_upgrade_it(
    wakeboard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "OLDEST_SERVER", 990_000)
    [found] = [item for item in wakeboard("doctor", "--json").json["items"] if item["check"] == "database"]
    assert found["level"] == "fail"
    assert found["says"].endswith("Upgrade that server, or use another one.")


@pytest.mark.parametrize("name", [*cli.COMMANDS])
def test_every_command_explains_itself(name: str, wakeboard: Command) -> None:
    said = wakeboard(name, "--help")
    assert said.code == 0
    assert "--json" in said.out
    assert "--database-url" in said.out or "Commands:" in said.out


def test_the_first_help_page_says_of_each_command_what_its_own_page_says() -> None:
    root = click.Context(cli.cli, info_name="wakeboard")
    own = {name: cli.cli.get_command(root, name) for name in cli.cli.list_commands(root)}
    assert {name: command.get_short_help_str(200) for name, command in own.items() if command} == {
        name: line for name, (_, line) in cli.COMMANDS.items()
    }


def test_the_first_help_page_imports_no_command_and_no_driver() -> None:
    program = (
        "import sys; from wakeboard.cli import run; run(['--help']);"
        "print([name for name in sys.modules"
        " if name in ('psycopg', 'sqlalchemy') or name.startswith('wakeboard.cli.commands.')])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "rehearse" in said.stdout and said.stdout.rstrip().endswith("[]")


def test_a_schedule_that_plain_sql_spoilt_says_so_to_whoever_previews_or_resumes_it(
    wakeboard: Command, connection: Connection
) -> None:
    for name, column in (("mars", {"timezone": "Mars/Base"}), ("text", {"schedule": "x y"})):
        a_definition(connection, name, next_fire_at=None, enabled=False, **column)
        previewed = wakeboard("schedule", "preview", name)
        assert previewed.code == 2 and "bug" not in previewed.err
        resumed = wakeboard("schedule", "resume", name)
        assert resumed.code == 1 and f"Schedule {name} cannot fire: " in resumed.err + resumed.out
    assert [row["enabled"] for row in rows(connection, "job_definitions")] == [False, False]
