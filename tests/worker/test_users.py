"""People, passwords, sessions, login links and tokens, on a real database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from werkzeug import security

from tests.conftest import Connection
from tests.support.factories import rows
from wakeboard.accounts import passwords, sessions, throttle, tokens, users
from wakeboard.config.settings import Settings
from wakeboard.core.states import Role
from wakeboard.database import db
from wakeboard.database.audit import Actor, terminal_actor
from wakeboard.queue.permission import AccountError

PASSWORD = "tea and biscuits at four"
HERE = "192.0.2.7"
SOMEBODY = Actor("victor", Role.VIEWER, "web")


@pytest.fixture
def alice(connection: Connection) -> int:
    """Alice, an operator; her id."""
    return users.create_user(connection, terminal_actor(), "alice", Role.OPERATOR, PASSWORD)


def session_of(connection: Connection, user_id: int) -> str:
    return sessions.open_session(connection, "alice", Role.OPERATOR, user_id=user_id, ip=HERE)


def move_sessions(connection: Connection, column: str, interval: str) -> None:
    connection.execute(
        f"UPDATE wakeboard.sessions SET {column} = {column} - %s::interval".encode(), (interval,)
    )


@pytest.mark.parametrize("name", ["engine", "anonymous", "cli:root", "token:ci", "link:admin"])
def test_nobody_is_called_as_the_audit_log_calls_what_is_no_person(connection: Connection, name: str) -> None:
    with pytest.raises(AccountError, match="the audit log calls others so"):
        users.create_user(connection, terminal_actor(), name, Role.VIEWER, PASSWORD)
    assert users.create_user(
        connection, terminal_actor(), f"{name}-2".replace(":", "-"), Role.VIEWER, PASSWORD
    )


@pytest.mark.parametrize(
    "password",
    [
        "short",
        "x" * 11,
        "y" * 129,
        "password1234",
        "Passw0rd!2024",
        "123456789012",
        "alice-alice-1",
        "qwertyuiop12",
    ],
)
def test_a_weak_password_is_refused_with_a_sentence(connection: Connection, password: str) -> None:
    with pytest.raises(AccountError, match=r"\.$"):
        users.create_user(connection, terminal_actor(), "alice", Role.VIEWER, password)
    assert rows(connection, "users") == []


@pytest.mark.parametrize(
    "password", [PASSWORD, "пароль с пробелами", "a" * 30 + "bcdefg" * 5, "correct-harness-9"]
)
def test_any_long_enough_password_signs_in(connection: Connection, password: str) -> None:
    users.create_user(connection, terminal_actor(), "alice", Role.VIEWER, password)
    assert users.check_password(connection, "alice", password, HERE) == Actor(
        "alice", Role.VIEWER, "web", HERE
    )


def test_the_same_password_typed_on_another_keyboard_fits(connection: Connection) -> None:
    users.create_user(connection, terminal_actor(), "zoe", Role.VIEWER, "zoe\u0308 et les autres")
    assert users.check_password(connection, "zoe", "zo\u00eb et les autres", HERE)


def test_passwords_are_kept_as_scrypt_hashes(connection: Connection, alice: int) -> None:
    (user,) = rows(connection, "users")
    assert user["password_hash"].startswith("scrypt:32768:8:3$")


def test_a_wrong_password_an_unknown_and_a_disabled_user_are_all_refused(
    connection: Connection, alice: int
) -> None:
    assert users.check_password(connection, "alice", "not that one at all", HERE) is None
    assert users.check_password(connection, "mallory", PASSWORD, HERE) is None
    assert users.check_password(connection, "a\0b", PASSWORD, HERE) is None
    users.disable_user(connection, terminal_actor(), "alice")
    assert users.check_password(connection, "alice", PASSWORD, HERE) is None


def test_an_unknown_user_costs_as_much_work_as_a_known_one(
    connection: Connection, alice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    real = security.check_password_hash

    def counting(pwhash: str, password: str) -> bool:
        checked.append(pwhash.split("$")[0])
        return real(pwhash, password)

    monkeypatch.setattr(passwords, "check_password_hash", counting)
    for name in ("alice", "mallory", "a\0b"):
        users.check_password(connection, name, "wrong", HERE)
    assert checked == ["scrypt:32768:8:3"] * 3


def test_the_eleventh_wrong_password_has_to_wait_and_a_right_one_works_afterwards(
    connection: Connection, alice: int
) -> None:
    for _ in range(10):
        assert users.check_password(connection, "alice", "wrong", HERE) is None
    with pytest.raises(throttle.TooManyAttempts) as early:
        users.check_password(connection, "alice", PASSWORD, HERE)
    assert 55 < early.value.seconds <= 60
    connection.execute(
        "UPDATE wakeboard.login_failures SET last_failed_at = last_failed_at - interval '61 s'"
    )
    assert users.check_password(connection, "alice", PASSWORD, HERE)
    assert rows(connection, "login_failures", "subject = 'user:alice'") == []


def test_each_further_failure_doubles_the_wait_up_to_a_quarter_of_an_hour(
    connection: Connection, alice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "is_password_of", lambda *_: False)
    for failures, seconds in ((11, 120), (12, 240), (40, 900)):
        connection.execute("DELETE FROM wakeboard.login_failures")
        connection.execute("INSERT INTO wakeboard.login_failures VALUES ('user:alice', %s)", (failures,))
        with pytest.raises(throttle.TooManyAttempts) as early:
            users.check_password(connection, "alice", PASSWORD, None)
        assert seconds - 5 < early.value.seconds <= seconds


def test_an_address_that_tries_many_names_has_to_wait(
    connection: Connection, alice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "is_password_of", lambda *_: False)
    for number in range(30):
        assert users.check_password(connection, f"user{number}", "wrong", HERE) is None
    with pytest.raises(throttle.TooManyAttempts):
        users.check_password(connection, "alice", PASSWORD, HERE)
    assert users.check_password(connection, "alice", "wrong", "192.0.2.8") is None


def test_attempts_sent_all_at_once_gain_nothing(
    database: str, connection: Connection, alice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "is_password_of", lambda *_: False)

    def attempt(_: int) -> bool:
        with db.connect(database, name="guess") as own:
            try:
                users.check_password(own, "alice", "wrong", HERE)
            except throttle.TooManyAttempts:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(24))) == 10


def test_a_session_is_known_by_its_cookie_alone_and_kept_as_a_hash(
    connection: Connection, alice: int
) -> None:
    cookie = session_of(connection, alice)
    assert sessions.authenticate_session(connection, cookie) == Actor("alice", Role.OPERATOR, "web", HERE)
    (kept,) = rows(connection, "sessions")
    assert cookie not in str(kept)
    assert sessions.authenticate_session(connection, kept["id_hash"]) is None


def test_a_change_of_role_holds_from_the_next_request_on(connection: Connection, alice: int) -> None:
    cookie = session_of(connection, alice)
    assert users.set_role(connection, terminal_actor(), "alice", Role.VIEWER)
    found = sessions.authenticate_session(connection, cookie)
    assert found is not None
    assert found.role == Role.VIEWER


def test_a_disabled_user_is_out_at_the_next_request(connection: Connection, alice: int) -> None:
    cookie = session_of(connection, alice)
    assert users.disable_user(connection, terminal_actor(), "alice")
    assert sessions.authenticate_session(connection, cookie) is None
    assert not users.disable_user(connection, terminal_actor(), "alice")
    users.enable_user(connection, terminal_actor(), "alice")
    assert sessions.authenticate_session(connection, cookie) is None


def test_a_new_password_ends_every_session(connection: Connection, alice: int) -> None:
    cookies = [session_of(connection, alice) for _ in range(2)]
    users.set_password(connection, terminal_actor(), "alice", "another long sentence")
    assert [sessions.authenticate_session(connection, cookie) for cookie in cookies] == [None, None]


def test_a_session_ends_after_half_an_hour_without_a_person(connection: Connection, alice: int) -> None:
    cookie = session_of(connection, alice)
    move_sessions(connection, "seen_at", "29 minutes")
    assert sessions.authenticate_session(connection, cookie, touch=False)
    move_sessions(connection, "seen_at", "2 minutes")
    assert sessions.authenticate_session(connection, cookie) is None


def test_a_request_of_a_person_keeps_the_session_alive(connection: Connection, alice: int) -> None:
    cookie = session_of(connection, alice)
    for _ in range(2):
        move_sessions(connection, "seen_at", "29 minutes")
        assert sessions.authenticate_session(connection, cookie)


def test_a_session_ends_after_twelve_hours_whatever_happens(connection: Connection, alice: int) -> None:
    cookie = session_of(connection, alice)
    move_sessions(connection, "expires_at", "12 hours")
    assert sessions.authenticate_session(connection, cookie) is None


def test_how_long_a_session_lasts_is_a_setting_with_the_defaults_of_old(
    connection: Connection, alice: int
) -> None:
    plain = Settings.load({}, environ={})
    assert (plain.session_seconds, plain.session_idle_seconds) == (12 * 3600, 30 * 60)
    cookie = sessions.open_session(connection, "alice", Role.OPERATOR, user_id=alice, seconds=7 * 86_400)
    move_sessions(connection, "seen_at", "20 hours")
    move_sessions(connection, "expires_at", "20 hours")
    assert sessions.authenticate_session(connection, cookie) is None
    assert users.list_users(connection)[0]["sessions"] == 0
    assert sessions.authenticate_session(connection, cookie, touch=False, idle_seconds=86_400)
    assert users.list_users(connection, 86_400)[0]["sessions"] == 1
    session_of(connection, alice)
    assert sessions.authenticate_session(connection, cookie, touch=False, idle_seconds=86_400)


def test_signing_out_ends_one_session_and_no_other(connection: Connection, alice: int) -> None:
    mine, other = session_of(connection, alice), session_of(connection, alice)
    assert sessions.close_session(connection, mine)
    assert sessions.authenticate_session(connection, mine) is None
    assert sessions.authenticate_session(connection, other)


def test_a_login_link_works_once(connection: Connection) -> None:
    token = sessions.create_login_link(connection, "deploy")
    assert sessions.peek_login_link(connection, token)
    assert sessions.consume_login_link(connection, token) == Actor("link:deploy", Role.ADMIN, "web")
    assert not sessions.peek_login_link(connection, token)
    assert sessions.consume_login_link(connection, token) is None


def test_of_many_who_use_a_login_link_at_once_one_comes_in(database: str, connection: Connection) -> None:
    token = sessions.create_login_link(connection, "deploy")

    def consume(_: int) -> bool:
        with db.connect(database, name="link") as own:
            return sessions.consume_login_link(own, token) is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(consume, range(16))) == 1


def test_a_login_link_is_worth_nothing_after_a_quarter_of_an_hour(connection: Connection) -> None:
    token = sessions.create_login_link(connection, "deploy")
    connection.execute("UPDATE wakeboard.login_links SET expires_at = expires_at - interval '15 minutes'")
    assert sessions.consume_login_link(connection, token) is None


def test_a_token_acts_with_its_role_until_it_is_revoked(connection: Connection) -> None:
    token = tokens.create_token(connection, terminal_actor(), "ci", Role.OPERATOR)
    assert token.startswith("wb_")
    assert tokens.authenticate_token(connection, token) == Actor("token:ci", Role.OPERATOR, "api")
    assert tokens.revoke_token(connection, terminal_actor(), "ci")
    assert tokens.authenticate_token(connection, token) is None
    assert not tokens.revoke_token(connection, terminal_actor(), "ci")


def test_a_token_ends_after_its_days(connection: Connection) -> None:
    token = tokens.create_token(connection, terminal_actor(), "ci", Role.VIEWER, days=7)
    assert tokens.authenticate_token(connection, token)
    connection.execute("UPDATE wakeboard.tokens SET expires_at = expires_at - interval '7 days'")
    assert tokens.authenticate_token(connection, token) is None


def test_what_the_database_keeps_of_a_token_cannot_be_used(connection: Connection) -> None:
    token = tokens.create_token(connection, terminal_actor(), "ci", Role.VIEWER)
    (kept,) = rows(connection, "tokens")
    assert token not in str(kept)
    assert tokens.authenticate_token(connection, kept["token_hash"]) is None
    assert tokens.authenticate_token(connection, "wb_" + kept["token_hash"]) is None
    assert "token_hash" not in tokens.list_tokens(connection)[0]


@pytest.mark.parametrize("name", ["", "two words", "a\nb", "x" * 101])
def test_a_user_name_without_sense_is_refused(connection: Connection, name: str) -> None:
    with pytest.raises(AccountError):
        users.create_user(connection, terminal_actor(), name, Role.VIEWER, PASSWORD)


def test_a_name_is_taken_once(connection: Connection, alice: int) -> None:
    with pytest.raises(AccountError, match="already"):
        users.create_user(connection, terminal_actor(), "alice", Role.ADMIN, PASSWORD)
    tokens.create_token(connection, terminal_actor(), "ci", Role.VIEWER)
    with pytest.raises(AccountError, match="already"):
        tokens.create_token(connection, terminal_actor(), "ci", Role.VIEWER)


def test_who_is_no_admin_changes_nobody_and_the_try_is_audited(connection: Connection, alice: int) -> None:
    for change in (
        lambda: users.create_user(connection, SOMEBODY, "bob", Role.ADMIN, PASSWORD),
        lambda: users.set_password(connection, SOMEBODY, "alice", "another long sentence"),
        lambda: users.set_role(connection, SOMEBODY, "alice", Role.ADMIN),
        lambda: users.disable_user(connection, SOMEBODY, "alice"),
        lambda: tokens.create_token(connection, SOMEBODY, "mine", Role.ADMIN),
    ):
        with pytest.raises(AccountError, match="takes the role admin"):
            change()
    assert [user["name"] for user in users.list_users(connection)] == ["alice"]
    assert len(rows(connection, "audit_log", "actor = 'victor' AND result = 'denied'")) == 5


def test_every_change_is_audited_and_no_secret_is(connection: Connection, alice: int) -> None:
    me = terminal_actor()
    users.set_role(connection, me, "alice", Role.ADMIN)
    users.set_password(connection, me, "alice", "another long sentence")
    users.disable_user(connection, me, "alice")
    token = tokens.create_token(connection, me, "ci", Role.VIEWER)
    tokens.revoke_token(connection, me, "ci")
    link = sessions.create_login_link(connection, "deploy")
    audit = rows(connection, "audit_log", order="id")
    assert [(row["action"], row["target_id"]) for row in audit] == [
        *[("user.change", "alice")] * 4,
        *[("token.change", "ci")] * 2,
        ("login.link", "link:deploy"),
    ]
    for secret in (PASSWORD, "another long sentence", token, link):
        assert secret not in str(audit)


def test_an_installation_has_one_id(connection: Connection, other: Connection) -> None:
    assert users.install_id(connection) == users.install_id(other) != ""
