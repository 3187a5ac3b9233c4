"""Databases that answer and cannot be used: too old, in another encoding, or closed to us. Each says what it
is; none is called away."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.conftest import Connection
from tests.support.postgres.old_server import is_installed, old_server
from tests.support.postgres.servers import Server
from tests.support.postgres.standbys import standby_of
from tests.support.processes import free_port, run_wakeboard, wait_until, wakeboard
from wakeboard.config.settings import Settings
from wakeboard.database import db
from wakeboard_dashboard import create_app

OLD = "The server is PostgreSQL 15; Wakeboard needs PostgreSQL 16 or newer."
SERVING = [("worker",), ("tick",), ("up",)]
COMMANDS = [("db", "upgrade"), ("db", "check"), ("runs",), ("enqueue", "mail")]


@pytest.fixture(scope="module")
def old() -> Iterator[str]:
    """The URL of a server that is too old."""
    if not is_installed():
        pytest.skip("there is no PostgreSQL 15 here (apt-get install postgresql-15)")
    with old_server() as url:
        yield url


@pytest.fixture(params=["LATIN1", "SQL_ASCII", "EUC_JP"])
def encoded(server: Server, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The URL of a database in another encoding, and that encoding."""
    name = f"wbtest_{request.param.lower()}_{free_port()}"
    with psycopg.connect(server.user_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE 'C'").format(
                sql.Identifier(name), sql.Literal(request.param)
            )
        )
        yield server.url(name), request.param
    server.drop(name)


def ended(words: tuple[str, ...], url: str) -> tuple[int, str]:
    """Exit code and standard error of a command that has to end by itself."""
    done = run_wakeboard(*words, database=url, seconds=30)
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [*SERVING, *COMMANDS], ids=" ".join)
def test_an_old_server_is_told_by_its_version_and_nothing_waits_for_it(
    old: str, words: tuple[str, ...]
) -> None:
    code, said = ended(words, old)
    assert (code, OLD in said) == (2, True), said
    assert "does not answer" not in said


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_another_encoding_is_told_with_the_command_that_makes_a_database(
    encoded: tuple[str, str], words: tuple[str, ...]
) -> None:
    url, encoding = encoded
    code, said = ended(words, url)
    assert (code, f"is in the encoding {encoding}" in said) == (2, True), said
    assert "createdb --encoding=UTF8" in said


@pytest.mark.parametrize("encoded", ["LATIN1"], indirect=True)
@pytest.mark.parametrize("words", SERVING, ids=" ".join)
def test_nothing_waits_for_another_encoding(encoded: tuple[str, str], words: tuple[str, ...]) -> None:
    code, said = ended(words, encoded[0])
    assert (code, "is in the encoding LATIN1" in said) == (2, True), said


def test_doctor_fails_with_the_sentence(old: str) -> None:
    code, _ = ended(("doctor", "--json"), old)
    said = json.loads(run_wakeboard("doctor", "--json", database=old).stdout)
    [found] = [item for item in said["items"] if item["check"] == "database"]
    assert (code, found["level"], OLD in found["says"]) == (1, "fail", True)


def test_the_dashboard_on_an_old_server_starts_and_its_pages_say_why(old: str) -> None:
    port = free_port()
    with wakeboard("web", "--bind", f"127.0.0.1:{port}", database=old) as web:
        web.wait_for("dashboard listens")
        for path in ("/", "/runs", "/readyz", "/statusz"):
            code, text = wait_until(lambda path=path: answer_of(f"http://127.0.0.1:{port}{path}"))
            assert (code, OLD in text) == (503, True), text
            assert "does not answer" not in text


def answer_of(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def page(url: str, path: str = "/readyz") -> tuple[int, str]:
    """What a dashboard on ``url`` answers, asked without a server."""
    app = create_app(Settings.load({}, environ={}), database_url=url)
    reply = app.test_client().get(path, environ_base={"REMOTE_ADDR": "127.0.0.1"})
    return reply.status_code, reply.get_data(as_text=True)


def test_a_page_on_another_encoding_says_why(encoded: tuple[str, str]) -> None:
    code, said = page(encoded[0])
    assert (code, f"is in the encoding {encoded[1]}" in said) == (503, True)


def without_database(server: Server, _superuser: Connection) -> str:
    return server.url("wbtest_nowhere")


def as_nobody(server: Server, _superuser: Connection) -> str:
    return make_conninfo(server.url("postgres", admin=True), user="wbtest_nobody")


def without_login(server: Server, superuser: Connection) -> str:
    superuser.execute("DROP ROLE IF EXISTS wbtest_no_login")
    superuser.execute("CREATE ROLE wbtest_no_login NOLOGIN")
    return make_conninfo(server.url("postgres", admin=True), user="wbtest_no_login")


@pytest.mark.parametrize(
    ("make", "meaning"),
    [
        (without_database, "there is no such database. Make it (createdb --encoding=UTF8"),
        # What it says of these depends on its pg_hba.conf.
        (as_nobody, None),
        (without_login, None),
    ],
)
def test_a_server_that_answers_and_refuses_is_not_called_silent(
    server: Server, superuser: Connection, make: Callable[[Server, Connection], str], meaning: str | None
) -> None:
    url = make(server, superuser)
    with pytest.raises(db.RefusedError, match="The database answers and refuses the connection") as refused:
        db.connect(url, name="wakeboard test").close()
    assert meaning is None or meaning in str(refused.value)
    code, said = page(url)
    assert (code, "answers and refuses the connection" in said) == (503, True)
    assert "wbtest_" not in said and "does not answer" not in said
    code, told = ended(("runs",), url)
    assert (code, "The server said:" in told) == (1, True)


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ('FATAL:  password authentication failed for user "shop"', "the user or the password is not right"),
        ("fe_sendauth: no password supplied", "the user or the password is not right"),
        ('FATAL:  Peer authentication failed for user "shop"', "the user or the password is not right"),
        ('FATAL:  role "shop" does not exist', "there is no such role that may log in"),
        ('FATAL:  role "shop" is not permitted to log in', "there is no such role that may log in"),
        ('FATAL:  permission denied for database "shop"', "GRANT CONNECT ON DATABASE"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.7", user "shop"', "its pg_hba.conf lets nobody in"),
        ("server does not support SSL, but SSL was required", "the encryption is not agreed on"),
        ("SSL error: certificate verify failed", "the encryption is not agreed on"),
        ("session is read-only", "it is a standby, or takes no writes from this role"),
        ("FATAL:  sorry, too many clients already", "all of its connections are in use"),
        ("FATAL:  something that nobody foresaw", "has its reason"),
    ],
)
def test_each_refusal_says_what_helps(said: str, meaning: str) -> None:
    """The words are those of libpq and of the server; here nobody has to be made to say them."""
    failure = db._connect_error(f'connection to server at "10.0.0.5", port 5432 failed: {said}\n')
    assert isinstance(failure, db.RefusedError)
    assert meaning in failure.shown and "10.0.0.5" not in failure.shown


@pytest.mark.parametrize(
    "said", ["Connection refused", "timeout expired", "FATAL:  the database system is starting up"]
)
def test_who_is_silent_or_just_comes_does_not_answer(said: str) -> None:
    failure = db._connect_error(f'connection to server at "10.0.0.5", port 5432 failed: {said}\n')
    assert type(failure) is db.DatabaseError and "does not answer: connection to server" in str(failure)


def test_a_standby_alone_is_told_to_be_one(server: Server) -> None:
    if server.data_dir is None:
        pytest.skip("a standby is made of our own server")
    with standby_of(server) as node, pytest.raises(db.RefusedError, match="it is a standby") as refused:
        db.connect(node.url("postgres"), name="wakeboard test").close()
    assert "Name the primary" in refused.value.shown


def test_a_worker_waits_for_a_password_that_is_put_right(server: Server, superuser: Connection) -> None:
    url = without_login(server, superuser)
    with wakeboard("worker", database=url) as worker:
        worker.wait_for("The database answers and refuses the connection")
        assert worker.process.poll() is None
        assert worker.terminate() == 0


def test_letters_that_a_database_cannot_store_are_told_to_who_sent_them(database: str) -> None:
    app = create_app(Settings.load({}, environ={}), database_url=database)
    # No database in UTF8 says so of a text that came this far, so the answer of one that does is given here.
    refused = psycopg.errors.UntranslatableCharacter("character has no equivalent in encoding")
    with app.test_request_context("/runs", method="POST", headers={"Accept": "application/json"}):
        reply = app.make_response(app.handle_user_exception(refused))
    assert reply.status_code == 400
    assert "letters that the database cannot store" in reply.get_json()["message"]
