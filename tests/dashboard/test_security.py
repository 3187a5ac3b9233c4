"""Who may come in, from where, and what every response says to the browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.http import parse_cookie

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole
from wakeboard.accounts import sessions, tokens, users
from wakeboard.config.settings import Settings
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import retry_now
from wakeboard_dashboard import create_app
from wakeboard_dashboard.pages.verbs import add_verb
from wakeboard_dashboard.web import anonymous_throttle, responses
from wakeboard_dashboard.web.responses import PROBES

BOSS = Actor("cli:boss", Role.ADMIN, "cli")
PASSWORD = "seven small boats at dawn"
POLICY = (
    "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types htmx"
)


def addresses(app: Flask, method: str = "GET") -> list[str]:
    """Return one concrete address for every route of the app that takes ``method``."""
    rules = [rule for rule in app.url_map.iter_rules() if method in (rule.methods or ())]
    found = [re.sub(r"<id:\w+>", "7", rule.rule) for rule in rules]
    found = [re.sub(r"<group:\w+>", "0123456789abc", address) for address in found]
    return sorted({re.sub(r"<[^>]+>", "x", address) for address in found})


def test_everything_is_closed_but_the_named_few(app: Flask) -> None:
    client = app.test_client()
    open_to_all = [address for address in addresses(app) if client.get(address).status_code < 300]
    files = ["/static/scripts.js"]
    assert sorted(open_to_all) == ["/healthz", "/login", "/metrics", "/readyz", *files, "/statusz"]


def test_posts_of_strangers_change_nothing(app: Flask, connection: Connection) -> None:
    client = app.test_client()
    before = counted(connection)
    for address in addresses(app, "POST"):
        for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Authorization": "Bearer wb_wrong"}):
            assert client.post(address, headers=headers).status_code in (303, 400, 401, 403), address
    assert counted(connection) == before


def counted(connection: Connection) -> dict[str, int]:
    """Return how many rows each table has; failed logins and refusals are meant to be written down."""
    tables = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'wakeboard'::regnamespace AND relkind = 'r'"
    ).fetchall()
    skipped = ("audit_log", "login_failures")
    found = {}
    for (name,) in tables:
        if name not in skipped:
            row = connection.execute(f"SELECT count(*) FROM wakeboard.{name}".encode()).fetchone()
            found[name] = row[0] if row else 0
    return found


def test_a_get_changes_nothing(app: Flask, client: FlaskClient, connection: Connection) -> None:
    connection.execute("INSERT INTO wakeboard.job_runs (id, job_type) VALUES (7, 'x')")
    snapshot = "SELECT md5(string_agg(r::text, '' ORDER BY id)) FROM wakeboard.job_runs r"
    before = (counted(connection), connection.execute(snapshot).fetchone())
    for address in addresses(app):
        client.get(address)
        client.head(address)
    assert (counted(connection), connection.execute(snapshot).fetchone()) == before


def test_every_response_carries_the_headers(app: Flask, client: FlaskClient) -> None:
    for address in [*addresses(app), "/nothing", "/?x=1", "/static/app.css"]:
        headers = client.get(address).headers
        assert headers["Content-Security-Policy"] == POLICY, address
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert (
            headers["Cross-Origin-Opener-Policy"] == headers["Cross-Origin-Resource-Policy"] == "same-origin"
        )
        assert "Access-Control-Allow-Origin" not in headers
        assert "Server" not in headers
        if not address.startswith("/static"):
            assert headers["Cache-Control"] == "no-store", address
            assert {"Cookie", "HX-Request"} <= {part.strip() for part in headers["Vary"].split(",")}


def test_no_page_has_inline_style_or_script(app: Flask, client: FlaskClient) -> None:
    for address in addresses(app):
        answer = client.get(address)
        if answer.mimetype == "text/html":
            html = answer.text
            assert not re.search(r"\sstyle=|<style|\son[a-z]+=|<script(?! src=)", html), address


# Coming in


def test_a_stranger_is_sent_to_sign_in_and_back(anonymous: FlaskClient) -> None:
    page = anonymous.get("/runs?status=dead")
    assert page.status_code == 303
    assert page.headers["Location"] == "/login?next=%2Fruns%3Fstatus%3Ddead"
    assert anonymous.get("/overview.json").status_code == 401


def test_a_poll_without_session_moves_the_browser_and_not_the_table(anonymous: FlaskClient) -> None:
    answer = anonymous.get(
        "/_fragments/overview/tiles",
        headers={"HX-Request": "true", "HX-Current-URL": "http://localhost/runs?status=dead"},
    )
    assert answer.status_code == 401
    assert answer.headers["HX-Redirect"] == "/login?next=%2Fruns%3Fstatus%3Ddead"


def test_a_login_link_works_once_and_only_by_its_button(
    app: Flask, anonymous: FlaskClient, connection: Connection
) -> None:
    token = sessions.create_login_link(connection, "anna")
    for _ in range(2):
        assert "signs you in once" in anonymous.get(f"/login?token={token}").text
    answer = anonymous.post("/login", data={"token": token, "next": "/runs"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/runs")
    assert "link:anna" in anonymous.get("/").text
    other = app.test_client()
    again = other.post("/login", data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"})
    assert again.status_code == 403 and "used already" in again.text


def test_the_session_cookie_is_out_of_scripts_reach(anonymous: FlaskClient, connection: Connection) -> None:
    token = sessions.create_login_link(connection, "anna")
    answer = anonymous.post("/login", data={"token": token})
    cookies = [value for name, value in answer.headers if name == "Set-Cookie" and "wakeboard_" in value]
    name = f"wakeboard_{users.install_id(connection)}"
    session = next(value for value in cookies if value.startswith(name))
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(session.split("; "))
    secret = session.split("=")[1].split(";")[0]
    stored = connection.execute("SELECT id_hash FROM wakeboard.sessions").fetchall()
    assert stored and all(secret not in row[0] for row in stored)


def test_on_https_the_cookie_is_secure_and_bound_to_the_host(database: str, connection: Connection) -> None:
    app = create_app(
        Settings.load(
            {"database_url": database, "hosts": "jobs.example.com,OPS.example.com", "behind_tls_proxy": "1"},
            environ={},
        )
    )
    client = app.test_client(use_cookies=False)
    token = sessions.create_login_link(connection, "anna")
    proxied = {
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "ops.example.com",
        "X-Forwarded-For": "203.0.113.9",
        "Origin": "https://ops.example.com",
    }
    answer = client.post("/login", data={"token": token}, headers=proxied)
    session = next(
        value for value in answer.headers.getlist("Set-Cookie") if value.startswith("__Host-wakeboard_")
    )
    assert answer.status_code == 303 and "Secure" in session and "Domain" not in session
    assert answer.headers["Strict-Transport-Security"].startswith("max-age=31536000")
    app.extensions["wakeboard_database"].dispose()


def test_a_password_opens_and_the_session_is_new(anonymous: FlaskClient, connection: Connection) -> None:
    users.create_user(connection, BOSS, "vera", Role.VIEWER, PASSWORD)
    wrong = anonymous.post("/login", data={"name": "vera", "password": "not this one, no"})
    assert wrong.status_code == 403 and "do not go together" in wrong.text
    first = anonymous.post("/login", data={"name": "vera", "password": PASSWORD})
    second = anonymous.post("/login", data={"name": "vera", "password": PASSWORD})
    assert first.status_code == second.status_code == 303
    assert first.headers["Set-Cookie"] != second.headers["Set-Cookie"]
    row = connection.execute("SELECT count(*) FROM wakeboard.sessions").fetchone()
    assert row == (1,), "the old session must end when a new one begins"


def test_guessing_is_slowed_down_for_names_that_exist_and_that_do_not(
    anonymous: FlaskClient, connection: Connection
) -> None:
    users.create_user(connection, BOSS, "vera", Role.VIEWER, PASSWORD)
    for name in ("vera", "nobody"):
        codes = [
            anonymous.post("/login", data={"name": name, "password": "wrong wrong wrong"}).status_code
            for _ in range(12)
        ]
        assert codes[0] == 403 and codes[-1] == 429, name


def test_a_disabled_person_is_out_at_the_next_request(anonymous: FlaskClient, connection: Connection) -> None:
    users.create_user(connection, BOSS, "vera", Role.OPERATOR, PASSWORD)
    anonymous.post("/login", data={"name": "vera", "password": PASSWORD})
    assert anonymous.get("/").status_code == 200
    users.disable_user(connection, BOSS, "vera")
    assert anonymous.get("/").status_code == 303


def test_signing_out_ends_the_session_in_the_database(app: Flask, client: FlaskClient) -> None:
    cookies = {cookie.key: cookie.value for cookie in client._cookies.values()}  # type: ignore[union-attr]
    assert client.get("/logout").status_code == 200 and client.get("/").status_code == 200
    assert client.post("/logout").headers["Location"] == "/login"
    replay = app.test_client()
    for name, value in cookies.items():
        replay.set_cookie(name, value)
    assert replay.get("/").status_code == 303


@pytest.mark.parametrize(
    "way", ["//evil.test", "https://evil.test", "/\\evil.test", "/_fragments/overview/tiles"]
)
def test_signing_in_never_leads_to_another_site(
    anonymous: FlaskClient, connection: Connection, way: str
) -> None:
    token = sessions.create_login_link(connection, "anna")
    assert anonymous.post("/login", data={"token": token, "next": way}).headers["Location"] == "/"


def test_a_poll_does_not_keep_a_session_alive(client: FlaskClient, connection: Connection) -> None:
    connection.execute("UPDATE wakeboard.sessions SET seen_at = now() - interval '10 minutes'")
    client.get("/_fragments/overview/tiles", headers={"HX-Request": "true"})
    query = "SELECT seen_at < now() - interval '9 minutes' FROM wakeboard.sessions"
    assert connection.execute(query).fetchone() == (True,)
    client.get("/")
    assert connection.execute(query).fetchone() == (False,)


# Other sites


@pytest.fixture
def bearer(connection: Connection) -> str:
    return tokens.create_token(connection, BOSS, "robot", Role.OPERATOR)


@pytest.fixture
def verb(app: Flask, connection: Connection) -> Iterator[str]:
    """The address of a verb on a dead run; pages bring their own, this one is the shell's."""
    from flask import Blueprint

    blueprint = Blueprint("tried", __name__)
    add_verb(
        blueprint,
        "/tried/<id:run_id>/retry",
        "run.retry",
        lambda connection, actor, reason, run_id: retry_now(connection, run_id, actor, reason),
        question=lambda run_id: f"Run {run_id} <b>will</b> be tried again.",
        back=lambda run_id: "/",
    )
    app.register_blueprint(blueprint)
    connection.execute(
        """INSERT INTO wakeboard.job_runs (id, job_type, status, attempts, failures, error_code, finished_at)
        VALUES (7, 'send_invoice', 'dead', 3, 3, 'BOOM', now())"""
    )
    yield "/tried/7/retry"


def status(connection: Connection) -> str:
    row = connection.execute("SELECT status FROM wakeboard.job_runs WHERE id = 7").fetchone()
    assert row
    return str(row[0])


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.test"},
        {"Origin": "http://evil.test"},
        {"Origin": "http://localhost:9999"},
        {"Origin": "null"},
        {},
    ],
)
def test_another_site_cannot_press_a_button(
    verb: str, as_role: AsRole, connection: Connection, headers: dict[str, str]
) -> None:
    browser = as_role("operator")
    browser.environ_base.pop("HTTP_SEC_FETCH_SITE")
    assert browser.post(verb, headers=headers).status_code == 403
    assert status(connection) == "dead"
    refused = "SELECT result FROM wakeboard.audit_log WHERE action = 'cross_site'"
    assert connection.execute(refused).fetchone() == ("refused",)


def test_strangers_fill_no_audit_log(anonymous: FlaskClient, connection: Connection) -> None:
    for _ in range(3 * anonymous_throttle.MOST_OF_ONE):
        assert anonymous.post("/runs/1/retry", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert anonymous.post("/login", data={"token": "wrong"}).status_code == 403
    (written,) = connection.execute("SELECT count(*) FROM wakeboard.audit_log").fetchone() or (0,)
    assert written == anonymous_throttle.MOST_OF_ONE


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": "http://localhost"}]
)
def test_the_page_itself_can(
    verb: str, as_role: AsRole, connection: Connection, headers: dict[str, str]
) -> None:
    browser = as_role("operator")
    browser.environ_base.pop("HTTP_SEC_FETCH_SITE")
    assert browser.post(verb, headers=headers).status_code == 303
    assert status(connection) == "queued"


def test_a_token_needs_no_fetch_metadata_unless_a_session_rides_along(
    app: Flask, verb: str, as_role: AsRole, connection: Connection, bearer: str
) -> None:
    headers = {"Authorization": f"Bearer {bearer}", "Accept": "application/json"}
    browser = as_role("operator")
    browser.environ_base.pop("HTTP_SEC_FETCH_SITE")
    assert browser.post(verb, headers=headers).status_code == 403
    program = app.test_client()
    answer = program.post(verb, headers=headers)
    assert answer.status_code == 200 and answer.get_json()["changed"] is True
    assert program.get("/overview.json", headers=headers).status_code == 200
    row = connection.execute(
        "SELECT actor, source FROM wakeboard.audit_log WHERE action = 'run.retry'"
    ).fetchone()
    assert row == ("token:robot", "api")


# Verbs


def test_a_verb_answers_each_asker_in_its_own_shape(
    verb: str, as_role: AsRole, connection: Connection
) -> None:
    browser = as_role("operator")
    confirm = browser.get(verb).text
    assert "Run 7 &lt;b&gt;will&lt;/b&gt; be tried again." in confirm and status(connection) == "dead"
    swapped = browser.post(verb, headers={"HX-Request": "true"}, data={"reason": "CRM is back"})
    assert swapped.status_code == 200 and 'hx-target="#toasts"' in swapped.text
    assert swapped.headers["HX-Trigger"] == "live:now"
    body = browser.post(verb, headers={"Accept": "application/json"})
    assert (body.status_code, body.get_json()["changed"]) == (200, False)
    assert set(body.get_json()) == {"id", "status", "changed", "message"}
    back = browser.post(verb, data={"next": "/logout"}, headers={"Referer": "http://localhost/nowhere"})
    assert (back.status_code, back.headers["Location"]) == (303, "/logout")
    reasons = connection.execute(
        "SELECT reason FROM wakeboard.audit_log WHERE action = 'run.retry' ORDER BY id"
    ).fetchall()
    assert reasons[0] == ("CRM is back",)


def test_the_answer_of_a_plain_form_is_shown_once(verb: str, as_role: AsRole) -> None:
    browser = as_role("operator")
    browser.post(verb)
    assert 'class="toast done"' in browser.get("/").text
    assert 'class="toast done"' not in browser.get("/").text


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({}, "text/html"),
        ({"Accept": "application/json"}, "application/json"),
        ({"HX-Request": "true"}, "text/plain"),
    ],
)
def test_a_viewer_may_look_and_not_act(
    verb: str, as_role: AsRole, connection: Connection, headers: dict[str, str], kind: str
) -> None:
    viewer = as_role("viewer")
    answer = viewer.post(verb, headers=headers)
    assert (answer.status_code, answer.mimetype, status(connection)) == (403, kind, "dead")
    denied = "SELECT actor, result FROM wakeboard.audit_log WHERE action = 'run.retry'"
    assert connection.execute(denied).fetchall() == [("viewer", "denied")]
    assert viewer.get(verb).status_code == 403


def test_a_verb_on_nothing_is_a_404_in_every_shape(verb: str, as_role: AsRole) -> None:
    browser = as_role("operator")
    for headers in ({}, {"Accept": "application/json"}, {"HX-Request": "true"}):
        assert browser.post("/tried/8/retry", headers=headers).status_code == 404


@pytest.mark.parametrize("number", ["9223372036854775808", "0", "99999999999999999999999", "-1", "1e3", "٣"])
def test_an_id_that_cannot_exist_is_a_404(verb: str, as_role: AsRole, number: str) -> None:
    assert as_role("operator").post(f"/tried/{number}/retry").status_code == 404


def test_a_json_body_that_is_no_object_is_refused(verb: str, as_role: AsRole, connection: Connection) -> None:
    answer = as_role("operator").post(verb, json=["reason"], headers={"Accept": "application/json"})
    assert answer.status_code == 400 and "JSON object" in answer.get_json()["message"]
    assert status(connection) == "dead"


# Host, size, characters


@pytest.mark.parametrize("host", ["evil.test", "localhost.evil.test", "127.0.0.1.nip.io"])
def test_another_host_name_is_refused(client: FlaskClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 400
    assert client.get("/healthz", headers={"Host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080"])
def test_the_names_of_this_machine_are_answered(anonymous: FlaskClient, host: str) -> None:
    assert anonymous.get("/healthz", headers={"Host": host}).status_code == 200


def test_forwarded_headers_are_not_believed_by_default(app: Flask) -> None:
    answer = app.test_client().get(
        "/healthz", headers={"X-Forwarded-For": "127.0.0.1"}, environ_base={"REMOTE_ADDR": "203.0.113.9"}
    )
    assert answer.status_code == 401


@pytest.mark.parametrize("path", PROBES)
def test_probes_are_open_on_loopback_and_by_token_elsewhere(app: Flask, path: str, bearer: str) -> None:
    far = {"REMOTE_ADDR": "203.0.113.9"}
    client = app.test_client()
    assert client.get(path).status_code == 200
    # No way to the sign-in page: a monitor that follows it would read 200 for ever.
    assert client.get(path, environ_base=far).status_code == 401
    assert (
        client.get(path, environ_base=far, headers={"Authorization": f"Bearer {bearer}"}).status_code == 200
    )


def test_a_body_over_a_megabyte_is_refused(client: FlaskClient) -> None:
    answer = client.post("/login", data={"name": "x" * 1_100_000})
    assert answer.status_code == 413 and "1 MB" in answer.text


@pytest.mark.parametrize("address", ["/?a=%00", "/%00", "/runs/%00", "/?%ff=%fe", "/" + "x" * 3000])
def test_odd_addresses_are_never_a_mistake_of_ours(client: FlaskClient, address: str) -> None:
    assert client.get(address).status_code in (400, 404)


@pytest.mark.parametrize("letter", ["a", "ż", "漢", "🙂", '"', "\x01", "\ud83d"])
def test_a_long_toast_is_cut_so_that_a_browser_keeps_its_cookie(app: Flask, letter: str) -> None:
    with app.test_request_context("/", base_url="https://dashboard.example"):
        cookie = responses.see_other("/", "Done: " + letter * 5000).headers["Set-Cookie"]
    assert len(cookie.encode()) <= 4096
    value = parse_cookie(cookie)[responses.TOAST_COOKIE]
    with app.test_request_context("/", headers={"Cookie": f"{responses.TOAST_COOKIE}={value}"}):
        toast = responses.read_toast()
    assert toast is not None and toast[0] == "done"
    assert toast[1].startswith("Done: ") and toast[1].endswith("…") and len(toast[1]) > 300
