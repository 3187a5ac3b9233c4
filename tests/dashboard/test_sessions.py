"""How long somebody stays signed in, and what ends that."""

from __future__ import annotations

from tests.conftest import Connection
from tests.dashboard.conftest import SAME_ORIGIN, AsRole
from tests.support.dashboard_apps import an_app
from wakeboard.accounts import tokens, users
from wakeboard.core.states import Role
from wakeboard.database.audit import terminal_actor

PASSWORD = "correct horse battery staple"


def test_a_session_lasts_as_long_as_the_settings_say_and_no_poll_prolongs_it(
    database: str, connection: Connection
) -> None:
    made = an_app(database_url=database, session_seconds="604800", session_idle_seconds="7200")
    browser = made.test_client()
    browser.environ_base.update(SAME_ORIGIN)
    users.create_user(connection, terminal_actor(), "vera", Role.VIEWER, PASSWORD)
    answer = browser.post("/login", data={"name": "vera", "password": PASSWORD})
    assert "Max-Age=604800;" in answer.headers["Set-Cookie"]
    ago = "UPDATE wakeboard.sessions SET seen_at = seen_at - interval '%s minutes'"
    for path, minutes, code in (("/runs", 119, 200), ("/_fragments/runs/list", 119, 200), ("/runs", 2, 303)):
        connection.execute((ago % minutes).encode())
        assert browser.get(path).status_code == code, path
    made.extensions["wakeboard_database"].dispose()


def test_signing_out_everywhere_ends_all_sessions_of_that_person_and_no_others(
    as_role: AsRole, connection: Connection
) -> None:
    here, there, boss = as_role("viewer"), as_role("viewer"), as_role("admin")
    assert 'href="/logout"' in here.get("/runs").text
    assert "Sign out everywhere" in here.get("/logout").text
    assert here.post("/logout", data={"everywhere": "yes"}).headers["Location"] == "/login"
    assert [each.get("/runs").status_code for each in (here, there, boss)] == [303, 303, 200]
    kept = "SELECT actor, action, after FROM wakeboard.audit_log WHERE action LIKE 'logout%'"
    assert connection.execute(kept).fetchall() == [("viewer", "logout.everywhere", {"sessions_ended": 2})]


def test_a_token_that_is_sent_along_does_not_keep_the_browsers_sessions_open(
    as_role: AsRole, connection: Connection
) -> None:
    here, there = as_role("viewer"), as_role("viewer")
    token = tokens.create_token(connection, terminal_actor(), "nightly copy", Role.VIEWER)
    here.post("/logout", data={"everywhere": "yes"}, headers={"Authorization": f"Bearer {token}"})
    assert [each.get("/runs").status_code for each in (here, there)] == [303, 303]
    kept = "SELECT actor, target_id, after FROM wakeboard.audit_log WHERE action LIKE 'logout%'"
    whose = [("token:nightly copy", "viewer", {"sessions_ended": 2})]
    assert connection.execute(kept).fetchall() == whose, "the log of a person has who signed her out"
