"""Tokens for some job types: what they may read and do, and that everything else is closed to them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, items_of
from tests.support.dashboard_apps import overhear
from tests.support.factories import a_run, a_type, a_worker, row, rows
from wakeboard.accounts import tokens
from wakeboard.core.run_spec import NewRun
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import cancel, manual_enqueue, retry_now, run_again
from wakeboard.queue.permission import AccountError
from wakeboard_dashboard.web.scopes import Scope, declared

BOSS = Actor("cli:boss", Role.ADMIN, "cli")
FAR = "203.0.113.9"
OPEN = {
    "enqueue.run_enqueue": Scope.OWN,
    "health.healthz": Scope.NO_TYPE,
    "health.readyz": Scope.NO_TYPE,
    "health.statusz": Scope.NO_TYPE,
    "leases.lease_release": Scope.RUN,
    "one_type.types__path_name__json": Scope.TYPE,
    "run.runs__id_run_id_": Scope.RUN,
    "run.runs__id_run_id__json": Scope.RUN,
    "run.runs__id_run_id__attempts__id_lease_epoch_": Scope.RUN,
    "run.runs__id_run_id__attempts__id_lease_epoch__json": Scope.RUN,
    "run.runs__id_run_id__payload": Scope.RUN,
    "run.runs__id_run_id__payload_json": Scope.RUN,
    "run_verbs.run_again": Scope.RUN,
    "run_verbs.run_cancel": Scope.RUN,
    "run_verbs.run_retry": Scope.RUN,
    "runs.runs_csv": Scope.OWN,
    "runs.runs_json": Scope.OWN,
    "types.type_pause": Scope.TYPE,
    "types.type_resume": Scope.TYPE,
}
OPEN_TO_ALL = {"static", "scripts", "login.show_form", "login.sign_in"}
HOSTILE = (
    "a'b\"c",
    "{x,NULL}",
    "null",
    "back\\slash",
    "mail,report",
    "a/b//c",
    "mail/pause",
    "x.json",
    "?q=1&type=mail#f",
    "%2F%25+ ",
    " spaces around ",
    "größe/日本語/🛹",
    "<img src=x onerror=alert(1)>",
    "\u202eliam",
    "$1; DROP TABLE wakeboard.tokens; --",
    "n" * 200,
)
AsToken = Callable[..., FlaskClient]


@pytest.fixture
def as_token(app: Flask, connection: Connection) -> AsToken:
    """``as_token("mail", role="viewer")``: a program with a token for these types, asking for JSON."""

    def program(*types: str, role: str = "operator") -> FlaskClient:
        name = f"program {len(tokens.list_tokens(connection))}"
        token = tokens.create_token(connection, BOSS, name, Role(role), job_types=types or None)
        client = app.test_client()
        client.environ_base.update(
            HTTP_AUTHORIZATION=f"Bearer {token}", HTTP_ACCEPT="application/json", REMOTE_ADDR=FAR
        )
        return client

    return program


def ids(client: FlaskClient, address: str) -> set[int]:
    return {item["id"] for item in items_of(client, address)}


def type_path(name: str) -> str:
    return f"/types/{quote(name, safe='')}"


def routes(app: Flask) -> list[tuple[str, str, str]]:
    """Return (endpoint, method, address) of everything the app serves, of run 7 and the type “mail”."""
    found = []
    for rule in app.url_map.iter_rules():
        address = re.sub(r"<id:\w+>", "7", rule.rule)
        address = re.sub(r"<group:\w+>", "0123456789abc", address)
        address = re.sub(r"<any\((\w+)[^>]*>", r"\1", address)
        address = re.sub(r"<[^>]+>", "mail", address)
        found += [(rule.endpoint, method, address) for method in sorted(rule.methods or ())]
    return found


# Closed


def test_what_is_open_to_such_tokens_is_this_and_nothing_else(app: Flask) -> None:
    marked = {name: declared(view) for name, view in app.view_functions.items()}
    assert {name: scope for name, scope in marked.items() if scope is not None} == OPEN


def test_every_other_address_answers_403_whatever_the_role(
    app: Flask, as_token: AsToken, connection: Connection
) -> None:
    a_type(connection, "mail")
    a_run(connection, "dead", id=7, job_type="mail")
    program = as_token("mail", role="admin")
    closed = [one for one in routes(app) if one[0] not in OPEN and one[0] not in OPEN_TO_ALL]
    assert len(closed) > 250
    before = rows(connection, "job_runs"), rows(connection, "job_types")
    for endpoint, method, address in closed:
        answer = program.open(address, method=method)
        assert answer.status_code == 403, (endpoint, method, address, answer.status_code)
        if method not in ("HEAD", "OPTIONS"):
            assert "is for the job type “mail” alone" in answer.text, address
    assert (rows(connection, "job_runs"), rows(connection, "job_types")) == before
    acts = [one for one in closed if one[1] == "POST"]
    denied = rows(connection, "audit_log", "action = 'out_of_scope'")
    assert len(denied) == len(acts)
    assert {(each["actor"], each["result"], each["source"]) for each in denied} == {
        ("token:program 0", "denied", "api")
    }
    whole = as_token()
    assert whole.get("/overview.json").status_code == 200
    assert whole.get("/runs/7.json").status_code == 200


def test_the_sentence_says_what_the_token_is_for_and_what_its_role_may_do(as_token: AsToken) -> None:
    operator = as_token("mail", "report").get("/overview.json").get_json()["message"]
    assert "operator, is for the job types “mail”, “report” alone" in operator
    assert "/runs/enqueue" in operator and "verbs on many runs at once and operations too" in operator
    viewer = as_token("mail", role="viewer").get("/workers.json").get_json()["message"]
    assert "viewer, is for the job type “mail”" in viewer and "enqueue" not in viewer
    many = as_token(*(f"type {number}" for number in range(20))).get("/").get_json()["message"]
    assert "“type 4” and 15 more" in many


@pytest.mark.parametrize("address", ["/runs/bulk/cancel", "/runs/bulk/retry", "/errors/0123456789abc/retry"])
def test_verbs_on_many_runs_are_refused_also_for_its_own(
    as_token: AsToken, connection: Connection, address: str
) -> None:
    run = a_run(connection, "failed", job_type="mail")
    answer = as_token("mail").post(address, json={"run": [run], "confirm": 1})
    assert answer.status_code == 403 and "many runs" in answer.get_json()["message"]
    assert row(connection, run)["status"] == "failed"


def test_probes_answer_and_the_metrics_of_all_types_only_here(as_token: AsToken) -> None:
    program = as_token("mail")
    assert program.get("/healthz").status_code == program.get("/readyz").status_code == 200
    assert program.get("/statusz").status_code in (200, 503)
    assert program.get("/metrics").status_code == 403
    assert program.get("/metrics", environ_base={"REMOTE_ADDR": "127.0.0.1"}).status_code == 200


def test_an_address_that_is_none_says_so(as_token: AsToken) -> None:
    program = as_token("mail")
    assert program.get("/nothing").status_code == 404
    assert program.get("/runs/99999999999999999999.json").status_code == 404
    assert program.delete("/runs.json").status_code == 405


# Reading


def test_the_list_has_its_types_whatever_is_asked(
    as_token: AsToken, connection: Connection, client: FlaskClient
) -> None:
    mail = {
        a_run(connection, state, job_type="mail", payload={"to": "x"})
        for state in ("dead", "failed", "queued")
    }
    report = {a_run(connection, "dead", job_type="report", payload={"to": "x"})}
    other = {a_run(connection, "dead", job_type="other", payload={"to": "x"}, idempotency_key="theirs")}
    one, two = as_token("mail"), as_token("mail", "report")
    assert ids(client, "/runs.json") == mail | report | other
    assert ids(one, "/runs.json") == mail and ids(two, "/runs.json") == mail | report
    for asked in (
        "q=x",
        "payload.to=x",
        "since=7d",
        "attempts=0%2B",
        "status=dead,failed,queued",
        "q=o&limit=9",
    ):
        assert ids(one, f"/runs.json?{asked}") <= mail and ids(two, f"/runs.json?{asked}") <= mail | report
    assert len(ids(one, "/runs.json?error=smtp_down")) == 2
    assert len(ids(two, "/runs.json?status=dead&since=7d")) == 2
    assert ids(two, "/runs.json?type=report") == report and ids(one, "/runs.json?type=mail") == mail
    for asked in ("type=other", "type=report", "key=theirs", f"q={min(other)}", "type=report&q=x"):
        assert ids(one, f"/runs.json?{asked}") == set(), asked
    assert one.get("/runs.json?type=other").get_json()["next"] is None
    lines = one.get("/runs.csv").text.splitlines()
    assert {int(line.split(",")[0]) for line in lines[1:]} == mail
    seen: set[int] = set()
    cursor = ""
    for _ in range(4):
        body = two.get(f"/runs.json?limit=1&cursor={cursor}").get_json()
        seen |= {item["id"] for item in body["items"]}
        cursor = body["next"] or ""
    assert seen == mail | report


def test_a_run_of_another_type_is_as_one_that_is_not_there(
    app: Flask, as_token: AsToken, connection: Connection
) -> None:
    run = a_run(connection, "dead", job_type="other")
    program, gone = as_token("mail", role="admin"), 987_654
    of_runs = [one for one in routes(app) if OPEN.get(one[0]) is Scope.RUN and one[1] in ("GET", "POST")]
    assert len(of_runs) == 14
    for _, method, address in of_runs:
        foreign, missing = (
            program.open(
                address.replace("/7", f"/{number}", 1), method=method, json={} if method == "POST" else None
            )
            for number in (run, gone)
        )
        assert foreign.status_code == missing.status_code == 404, address
        said, blank = foreign.get_json(), missing.get_json()
        assert said.pop("request_id") != blank.pop("request_id")
        assert said["message"].replace(str(run), str(gone)) == blank["message"], address
        assert {**said, "message": ""} == {**blank, "message": ""}
    assert row(connection, run)["status"] == "dead" and len(rows(connection, "job_runs")) == 1
    tried = rows(connection, "audit_log", "target_type = 'run' AND target_id = %s", str(run))
    assert {each["reason"] for each in tried} == {
        *(f"POST /runs/{run}/{verb}" for verb in ("retry", "cancel", "again")),
        f"POST /leases/{run}/release",
    }
    assert {(each["action"], each["result"]) for each in tried} == {("out_of_scope", "denied")}


def test_a_run_tells_of_relatives_of_its_types_alone(as_token: AsToken, connection: Connection) -> None:
    origin = a_run(connection, "succeeded", job_type="other", idempotency_key="their secret key")
    run = a_run(connection, "succeeded", job_type="mail", origin_run_id=origin)
    mine = a_run(connection, "queued", job_type="mail", origin_run_id=run, enqueued_by=f"run:{run}")
    theirs = a_run(connection, "queued", job_type="other", origin_run_id=run, enqueued_by=f"run:{run}")
    narrow, wide = as_token("mail"), as_token("mail", "other")

    def made(program: FlaskClient) -> set[int]:
        found = program.get(f"/runs/{run}.json").get_json()
        return {*found["enqueued"], *found["descendants"]}

    assert made(narrow) == {mine} and made(wide) == {mine, theirs}
    page = narrow.get(f"/runs/{run}", headers={"Accept": "text/html"})
    html = page.text
    assert page.status_code == 200 and "their secret key" not in html and f"/runs/{theirs}" not in html
    assert "their secret key" in wide.get(f"/runs/{run}").text


def test_a_page_does_not_count_what_needs_attention_elsewhere(
    as_token: AsToken, client: FlaskClient, connection: Connection
) -> None:
    run = a_run(connection, "queued", job_type="mail")
    a_run(connection, "dead", job_type="other")
    assert 'data-attention="1"' in client.get(f"/runs/{run}").text
    program = as_token("mail")
    for address in (f"/runs/{run}", f"/runs/{run}/payload", "/overview", "/"):
        html = program.get(address, headers={"Accept": "text/html"}).text
        assert 'data-attention="0"' in html and "<title>(" not in html, address


# Acting


def test_it_enqueues_runs_of_its_types_and_of_no_other(as_token: AsToken, connection: Connection) -> None:
    for name in ("mail", "report", "other", "mails"):
        a_type(connection, name)
    theirs = a_run(connection, "queued", job_type="other", idempotency_key="k")
    program = as_token("mail", "soon")
    made = program.post("/runs/enqueue", json={"type": "mail", "payload": {"to": 7}})
    assert (
        made.status_code == 200 and row(connection, made.get_json()["id"])["enqueued_by"] == "token:program 0"
    )
    for name in ("other", "nowhere", "mails", "", "MAIL"):
        refused = program.post("/runs/enqueue", json={"type": name})
        assert refused.status_code == 403, name
        assert "is for the job types “mail”, “soon” alone" in refused.get_json()["message"]
    early = program.post("/runs/enqueue", json={"type": "soon"}).get_json()
    assert "no worker has ever registered it" in str(early)
    assert "other" not in program.get("/runs/enqueue").text
    taken = program.post("/runs/enqueue", json={"type": "mail", "key": "k"})
    said = taken.get_json()["message"]
    assert taken.status_code == 400 and "is taken" in said
    assert "of type" not in said and f"run {theirs}" not in said
    assert len(rows(connection, "job_runs")) == 2
    denied = rows(connection, "audit_log", "action = 'run.enqueue' AND result = 'denied'")
    assert {each["actor"] for each in denied} == {"token:program 0"} and len(denied) == 5
    viewer = as_token("mail", role="viewer").post("/runs/enqueue", json={"type": "mail"})
    assert viewer.status_code == 403 and len(rows(connection, "job_runs")) == 2


def test_it_does_the_verbs_of_its_role_on_its_runs(as_token: AsToken, connection: Connection) -> None:
    dead, queued = a_run(connection, "dead"), a_run(connection, "queued")
    program, viewer = as_token("mail"), as_token("mail", role="viewer")
    for verb in ("retry", "cancel", "again"):
        assert viewer.post(f"/runs/{dead}/{verb}").status_code == 403
        assert viewer.get(f"/runs/{dead}/{verb}").status_code == 403
    assert viewer.get(f"/runs/{dead}.json").status_code == 200
    again = program.post(f"/runs/{dead}/again").get_json()
    assert row(connection, again["id"])["job_type"] == "mail"
    assert program.post(f"/runs/{dead}/again", json={"payload": {"x": 1}}).status_code == 403
    assert program.post(f"/runs/{dead}/retry").get_json()["status"] == "queued"
    assert program.post(f"/runs/{queued}/cancel").get_json()["status"] == "cancelled"
    (audited,) = rows(connection, "audit_log", "action = 'run.cancel' AND result = 'done'")
    assert (audited["actor"], audited["source"], audited["ip"]) == ("token:program 0", "api", FAR)


def test_it_pauses_and_resumes_its_types_and_no_more(as_token: AsToken, connection: Connection) -> None:
    for name in ("mail", "other"):
        a_type(connection, name)
    program = as_token("mail")
    assert program.post("/types/mail/pause", json={"reason": "provider down"}).status_code == 200
    assert program.get("/types/mail.json").get_json()["state"] == "paused"
    assert program.post("/types/mail/resume").get_json()["changed"] is True
    for address in ("/types/mail/limit", "/types/mail/keep", "/types/other/pause", "/types/nowhere/pause"):
        assert program.post(address, json={"limit": "0"}).status_code == 403, address
    for address in ("/types/other.json", "/types/nowhere.json", "/types/mail", "/types.json"):
        assert program.get(address).status_code == 403, address
    assert as_token("mail", role="viewer").post("/types/mail/pause").status_code == 403
    assert rows(connection, "job_types", "paused_at IS NOT NULL OR max_running_operator IS NOT NULL") == []


def test_types_may_be_called_anything(as_token: AsToken, connection: Connection) -> None:
    for name in HOSTILE:
        a_type(connection, name)
    a_worker(connection, "w1")
    every = as_token(*HOSTILE)
    runs: dict[str, Any] = {}
    for name in HOSTILE:
        made = every.post("/runs/enqueue", json={"type": name})
        assert made.status_code == 200, (name, made.get_json())
        runs[name] = made.get_json()["id"]
        assert row(connection, runs[name])["job_type"] == name
    assert ids(every, "/runs.json") == set(runs.values())
    for name, other in zip(HOSTILE, (*HOSTILE[1:], HOSTILE[0]), strict=True):
        program = as_token(name)
        assert ids(program, "/runs.json") == ids(program, "/runs.json?q=n") | {runs[name]} == {runs[name]}
        assert program.get(f"/runs/{runs[name]}.json").get_json()["job_type"] == name
        assert program.get(f"{type_path(name)}.json").get_json()["name"] == name
        assert program.post(f"{type_path(name)}/pause").get_json()["changed"] is True, name
        assert program.get(f"/runs/{runs[other]}.json").status_code == 404
        assert program.post(f"{type_path(other)}/resume").status_code == 403
        assert program.get("/", headers={"Accept": "text/html"}).text.count("<img src=x") == 0
    assert len(rows(connection, "job_types", "paused_at IS NOT NULL")) == len(HOSTILE)


def test_a_token_without_any_type_reaches_nothing(as_token: AsToken, connection: Connection) -> None:
    run = a_run(connection, "dead")
    program = as_token("mail")
    connection.execute("UPDATE wakeboard.tokens SET job_types = '{}'")
    assert ids(program, "/runs.json") == set()
    assert program.get(f"/runs/{run}.json").status_code == 404
    assert program.post("/runs/enqueue", json={"type": "mail"}).status_code == 403


def test_a_session_beside_the_token_widens_nothing(as_role: AsRole, as_token: AsToken) -> None:
    browser, program = as_role("admin"), as_token("mail")
    token = program.environ_base["HTTP_AUTHORIZATION"]
    assert browser.get("/overview.json", headers={"Authorization": token}).status_code == 403
    assert browser.get("/overview.json").status_code == 200


# Where it is written


def test_the_moves_themselves_keep_to_the_types(connection: Connection) -> None:
    a_type(connection, "other")
    dead, queued = a_run(connection, "dead", job_type="other"), a_run(connection, "queued", job_type="other")
    actor = Actor("token:mailer", Role.ADMIN, "api", job_types=("mail",))
    found = [
        retry_now(connection, dead, actor),
        run_again(connection, dead, actor),
        cancel(connection, queued, actor),
    ]
    assert [answer.result for answer in found] == ["missing"] * 3
    assert manual_enqueue.enqueue_by_hand(connection, NewRun("other"), actor).result == "denied"
    with pytest.raises(AccountError, match="is for the job type “mail” alone"):
        tokens.create_token(connection, actor, "wider", Role.ADMIN)
    assert len(rows(connection, "job_runs")) == 2 and row(connection, queued)["status"] == "queued"


def test_the_list_of_rare_types_walks_no_large_table(
    app: Flask, as_token: AsToken, connection: Connection
) -> None:
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, attempts, started_at, finished_at)
        SELECT 'busy', 'succeeded', 1, now(), now() FROM generate_series(1, 30000)"""
    )
    for name in ("mail", "report"):
        a_run(connection, "dead", job_type=name, payload={"n": "x"})
    connection.execute("ANALYZE wakeboard.job_runs")
    program = as_token("mail", "report")
    statements: list[tuple[str, Any]] = []
    overhear(app, lambda sql, values: statements.append((sql, values)))
    for asked in ("", "?status=dead", "?status=dead,failed", "?q=x", "?error=smtp_down", "?since=7d"):
        assert len(ids(program, f"/runs.json{asked}")) == 2
    looked = [one for one in statements if "job_runs" in one[0]]
    assert len(looked) >= 12
    for sql, values in looked:
        plan = "\n".join(line[0] for line in connection.execute(f"EXPLAIN {sql}".encode(), values).fetchall())
        # Rows are read by their ids, and these are found on an index of the type, never by walking back.
        assert "Seq Scan on job_runs" not in plan, plan
        assert "Backward using job_runs_pkey" not in plan or "Index Cond: (id = ANY" in plan, plan
