"""Who comes in and who may do what: link, session, token, role, site; and the audit that remembers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.factories import a_run, status
from tests.support.http_client import JSON, OTHER_SITE, Visitor
from tests.support.installation import Household, enqueue, wait_for_end
from tests.support.processes import run_wakeboard, wait_until

PASSWORD = "seven small boats at dawn"


@pytest.fixture(scope="module")
def operator(household: Household, command: Callable[..., Any]) -> Visitor:
    """A program with an operator's token."""
    return Visitor(household.url, command("token", "create", "night-watch", "--role", "operator")["token"])


@pytest.fixture(scope="module")
def viewer(household: Household, command: Callable[..., Any]) -> Visitor:
    """A program with a viewer's token."""
    return Visitor(household.url, command("token", "create", "wall-screen", "--role", "viewer")["token"])


def audited(visitor: Visitor, run_id: int) -> list[tuple[str, str, str | None]]:
    """Return (actor, result, reason) of what the audit's twin tells of a run, oldest first."""
    listed = visitor.get("/audit.json").json["items"]
    found = [each for each in listed if str(run_id) in str(each["target_id"])]
    return [(each["actor"], each["result"], each["reason"]) for each in reversed(found)]


def test_a_login_link_works_once(household: Household) -> None:
    token = fresh_link(household).partition("token=")[2]
    visitor = Visitor(household.url)
    shown = visitor.get(f"/login?token={token}")
    assert (shown.code, "Sign in" in shown.text) == (200, True)
    assert visitor.get("/runs").code == 303
    assert visitor.post("/login", {"token": token}).code == 303
    assert visitor.get("/runs").code == 200
    second = Visitor(household.url)
    again = second.post("/login", {"token": token})
    assert again.code == 403
    assert "used already" in again.text
    assert second.get("/runs").code == 303


def fresh_link(household: Household) -> str:
    said = run_wakeboard("login-link", database=household.database)
    assert said.returncode == 0, said.stderr
    return said.stdout.strip().split()[-1]


def test_a_person_with_a_password_signs_in_and_out(household: Household) -> None:
    words = ("user", "add", "anna", "--role", "operator", "--password-stdin")
    assert run_wakeboard(*words, database=household.database, input=PASSWORD).returncode == 0
    visitor = Visitor(household.url)
    assert visitor.post("/login", {"name": "anna", "password": "wrong"}).code == 403
    assert visitor.post("/login", {"name": "anna", "password": PASSWORD, "next": "/runs"}).code == 303
    assert visitor.get("/runs").code == 200
    assert visitor.post("/logout").code == 303
    assert visitor.get("/runs").code == 303


def test_strangers_see_the_sign_in_page_and_programs_a_401(household: Household) -> None:
    stranger = Visitor(household.url)
    for path in ("/", "/runs", "/runs/1", "/audit", "/no-such-page"):
        sent = stranger.get(path, {"Accept": "text/html"})
        assert sent.code == 303, path
        assert sent.headers["Location"].startswith("/login?next=")
    for path in ("/overview.json", "/runs.json", "/runs.csv", "/runs/1.json"):
        refused = stranger.get(path, JSON)
        assert refused.code == 401, path
        assert refused.json["message"]
    assert Visitor(household.url, "wb_made_up").get("/runs.json").code == 401


def test_a_foreign_host_is_refused(household: Household, admin: Visitor) -> None:
    for path in ("/", "/login", "/healthz", "/static/app.css"):
        refused = admin.get(path, {"Host": "attacker.example"})
        assert refused.code == 400, path
        assert "--host" in refused.text


def test_an_operators_token_retries_by_form_and_by_json(
    operator: Visitor, admin: Visitor, shared: Connection
) -> None:
    by_form, by_json = (a_run(shared, "dead", job_type="tidy") for _ in range(2))
    assert operator.post(f"/runs/{by_form}/retry", {"reason": "the disk is back"}).code == 303
    answer = operator.post(f"/runs/{by_json}/retry", headers=JSON, json_body={"reason": "the disk is back"})
    assert (answer.code, answer.json["id"], answer.json["changed"]) == (200, by_json, True)
    assert answer.json["status"] == "queued"
    for run_id in (by_form, by_json):
        assert wait_for_end(shared, run_id) == "succeeded"
        assert audited(admin, run_id) == [("token:night-watch", "done", "the disk is back")]


def test_a_viewers_token_is_refused_and_written_down(
    viewer: Visitor, admin: Visitor, shared: Connection
) -> None:
    run_id = a_run(shared, "dead", job_type="tidy")
    refused = viewer.post(f"/runs/{run_id}/retry", headers=JSON, json_body={"reason": "please"})
    assert refused.code == 403
    assert "operator" in refused.json["message"]
    assert status(shared, run_id) == "dead"
    assert [each[:2] for each in audited(admin, run_id)] == [("token:wall-screen", "denied")]
    assert viewer.get(f"/runs/{run_id}.json").code == 200


def test_a_post_from_another_site_is_refused_and_written_down(admin: Visitor, shared: Connection) -> None:
    run_id = a_run(shared, "dead", job_type="tidy")
    refused = admin.post(f"/runs/{run_id}/retry", headers=OTHER_SITE)
    assert refused.code == 403
    assert "another site" in refused.text
    assert status(shared, run_id) == "dead"
    ((_, result, reason),) = audited(admin, run_id)
    assert result == "refused"
    assert "cross-site" in str(reason)


def test_verbs_answer_by_what_they_found(operator: Visitor, shared: Connection) -> None:
    running, ended = enqueue(shared, "long"), a_run(shared, "succeeded", job_type="tidy")
    delayed = a_run(shared, "queued", job_type="tidy", run_at="1 hour")
    assert operator.post(f"/runs/{ended}/retry", headers=JSON).code == 409
    assert operator.post(f"/runs/{delayed}/cancel", headers=JSON).json["status"] == "cancelled"
    again = operator.post(f"/runs/{delayed}/cancel", headers=JSON)
    assert (again.code, again.json["changed"]) == (200, False)
    wait_until_running(shared, running)
    asked = operator.post(f"/runs/{running}/cancel", headers=JSON)
    assert (asked.code, asked.json["status"]) == (202, "running")
    assert wait_for_end(shared, running) == "cancelled"


def wait_until_running(connection: Connection, run_id: int) -> None:
    wait_until(lambda: status(connection, run_id) == "running", 20, f"run {run_id} is running")
