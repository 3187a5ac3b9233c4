"""Sessions that are cut under a page: one line of the log for each, and the next page is there."""

from __future__ import annotations

import logging

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import event

from tests.conftest import Connection
from wakeboard_dashboard.web.connection import Database

CUT = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'wakeboard web'
"""


@pytest.mark.parametrize("place", ["now()", "job_runs"])
def test_a_session_that_is_cut_under_a_page_costs_one_line_of_the_log(
    app: Flask, client: FlaskClient, other: Connection, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    """Before its first statement, and in the middle of it."""
    engines: Database = app.extensions["wakeboard_database"]
    assert client.get("/runs").status_code == 200
    cuts = []

    def cut(_connection: object, _cursor: object, statement: str, *_given: object) -> None:
        if not cuts and place in statement:
            cuts.append(other.execute(CUT).fetchall())

    event.listen(engines.pages, "before_cursor_execute", cut)
    caplog.set_level(logging.WARNING)
    assert client.get("/runs").status_code == 503
    assert cuts
    told = [(record.name, record.getMessage()) for record in caplog.records]
    traces = [record for record in caplog.records if record.exc_info]
    assert len(told) == 1, told
    assert traces == []
    caplog.clear()
    assert client.get("/runs").status_code == 200
    assert caplog.records == []
