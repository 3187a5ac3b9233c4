"""The ways by which a payload comes in: Python, a command's standard input, plain SQL, a page's form, JSON.

Each either enqueues a run of the type ``echo`` and returns its id, or returns None, having made sure that the
refusal is a sentence of the kind that belongs there. Anything else is a failure of the test.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from decimal import Decimal
from typing import Any

import psycopg
from flask.testing import FlaskClient

from wakeboard import cli, enqueue
from wakeboard.queue import EnqueueError

Door = Callable[[dict[str, Any]], int | None]
TYPE = "echo"
# PostgreSQL's own refusals: class 22 is data that it cannot read, 23 a rule of the table, 54 its limits.
REFUSALS = ("22", "23", "54")
SENTENCE = re.compile(r"[A-Z].*[.…)]", re.DOTALL)


@contextmanager
def room() -> Iterator[None]:
    """Let this thread read and write JSON of any depth, and numbers of any length."""
    limits = sys.getrecursionlimit(), sys.get_int_max_str_digits()
    sys.setrecursionlimit(30_000)
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.setrecursionlimit(limits[0])
        sys.set_int_max_str_digits(limits[1])


def as_stored(value: Any) -> Any:
    """Return ``value`` as PostgreSQL gives it back.

    Its numbers are written out, large floats as whole ones; a set is a list.
    """
    if isinstance(value, float):
        written = f"{Decimal(repr(value)):f}"
        return float(written) + 0.0 if "." in written else int(written)
    if isinstance(value, dict):
        return {key: as_stored(each) for key, each in value.items()}
    return [as_stored(each) for each in value] if isinstance(value, list | tuple | set) else value


class Doors:
    """All doors to one database."""

    def __init__(
        self, connection: psycopg.Connection[Any], database: str, client: FlaskClient, ended_run: int
    ) -> None:
        """``client`` is signed in as an admin; ``ended_run`` is what is run again with another payload."""
        self._connection = connection
        self._database = database
        self.client = client
        self._address = f"/runs/{ended_run}/again"
        self.all: tuple[Door, ...] = (self.python, self.terminal, self.insert, self.json, self.form)

    def close(self) -> None:
        """Give the pages' database connections back."""
        self.client.application.extensions["wakeboard_database"].dispose()

    def python(self, payload: dict[str, Any]) -> int | None:
        """Call ``enqueue()``."""
        try:
            return enqueue(self._connection, TYPE, payload)
        except EnqueueError as refused:
            assert SENTENCE.fullmatch(str(refused)), refused
            return None

    def terminal(self, payload: dict[str, Any]) -> int | None:
        """Pipe it into ``wakeboard enqueue``."""
        given = io.TextIOWrapper(io.BytesIO(_json(payload, ensure_ascii=False)))
        before, sys.stdin = sys.stdin, given
        try:
            with redirect_stdout(io.StringIO()) as said, redirect_stderr(io.StringIO()) as complained:
                words = ["enqueue", TYPE, "--new-type", "--payload", "-", "--database-url", self._database]
                code = cli.run(words)
        finally:
            sys.stdin = before
        assert code in (0, 2), (code, complained.getvalue())
        if code == 2:
            assert SENTENCE.fullmatch(complained.getvalue().strip()), complained.getvalue()
            return None
        return int(said.getvalue())

    def insert(self, payload: dict[str, Any]) -> int | None:
        """Insert the row."""
        statement = (
            f"INSERT INTO wakeboard.job_runs (job_type, payload) VALUES ('{TYPE}', %s::jsonb) RETURNING id"
        )
        try:
            (run_id,) = self._connection.execute(statement, (_json(payload).decode(),)).fetchone() or (0,)
            return int(run_id)
        except psycopg.Error as refused:
            assert (refused.sqlstate or "").startswith(REFUSALS), refused
            return None

    def json(self, payload: dict[str, Any]) -> int | None:
        """Run a run again by JSON."""
        body = b'{"payload": ' + _json(payload) + b"}"
        return self._again(data=body, content_type="application/json")

    def form(self, payload: dict[str, Any]) -> int | None:
        """Run a run again by the form of its page."""
        return self._again(data={"payload": _json(payload)})

    def _again(self, **request: Any) -> int | None:
        answer = self.client.post(self._address, headers={"Accept": "application/json"}, **request)
        found = answer.get_json()
        assert answer.status_code in (200, 400, 413), (answer.status_code, found)
        if answer.status_code != 200:
            assert SENTENCE.fullmatch(found["message"]), found
            return None
        return int(found["id"])


def _json(value: Any, *, ensure_ascii: bool = True) -> bytes:
    """Return JSON as a careless program writes it: NaN, halves of characters, any depth, any number."""
    with room():
        return json.dumps(value, ensure_ascii=ensure_ascii).encode("utf-8", "surrogatepass")
