"""No filter is accepted and then ignored: to who acts on all that match, a dropped one means every run."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import Select
from sqlalchemy.dialects import postgresql

import wakeboard_dashboard.views
from tests.conftest import Connection
from tests.support.factories import a_definition, a_group, a_run, status
from tests.support.workers.bulk_operations import begin
from wakeboard import cli
from wakeboard.core.errors.error_groups import format_fingerprint
from wakeboard.reporting.filters import audit, runs, search
from wakeboard.reporting.filters.line import read_line
from wakeboard.reporting.filters.values import Field, FilterError, FilterValues, read_pairs
from wakeboard_dashboard.views import effects, error_group, errors, leases, night, operations, overview
from wakeboard_dashboard.views import schedules as schedules_page
from wakeboard_dashboard.views import types as types_page
from wakeboard_dashboard.views import workers as workers_page

JSON = {"Accept": "application/json"}
Fields = Mapping[str, Field]
# What each page reads from its address.
PAGES: dict[str, Fields] = {
    "/audit": audit.FIELDS,
    "/effects": effects.FIELDS,
    "/errors": errors.FIELDS,
    "/errors/E1": errors.WINDOW_FIELDS,
    "/errors/{group}": error_group.FIELDS,
    "/leases": leases.FIELDS,
    "/night": night.FIELDS,
    "/operations": operations.FIELDS,
    "/operations/{operation}": operations.FIELDS_OF_ONE,
    "/overview": overview.FIELDS,
    "/runs": runs.FIELDS,
    "/schedules": schedules_page.FIELDS,
    "/types": types_page.FIELDS,
    "/workers": workers_page.FIELDS,
}
NOW = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)
VALUES = (
    "", " ", ",", ",,", "0", "1", "00", "-1", "+", "5-2", "0-0", "3+", "2-5", "x", "a.b", "a,b", "=", "\0",
    "null", "None", "0s", "1h", "7d", "2026-11-20", "2026-11-20T08:30Z", "0000000000000", "00000000000a1",
    "hour", "day", "queued", "queued,", "queued,dead", "DEAD", "running", "retry", "done", "web", "run:7",
    "run 7", "schedule", "missed", "paused", "muted", "new", "live", "silent", "idle", "24h", "5m", "6h",
    "15m", "moved",
)  # fmt: skip


def near(name: str) -> Iterator[str]:
    """Yield ``name`` and what somebody may type instead of it."""
    stem = name.removesuffix(".")
    for each in (stem, f"{stem}.id", f"{stem}.customer.id"):
        yield from (
            each,
            f"{each}.",
            f".{each}",
            f"{each}..",
            f"{each} ",
            f" {each}",
            f"{each}[]",
            f"{each}:",
        )
        yield from (each.upper(), each.capitalize(), f"{each}s", each[:-1], each[1:], f"-{each}", f"{each}-")


def names(fields: Fields) -> list[str]:
    """Return the names of ``fields`` and near ones, each once."""
    return list(dict.fromkeys(["", ".", "..", *(other for name in fields for other in near(name))]))


def accepted(fields: Fields) -> dict[tuple[str, str], FilterValues]:
    """Return what is read of each name and value that is not refused."""
    found = {}
    for name in names(fields):
        for value in VALUES:
            try:
                found[name, value] = read_pairs([(name, value)], fields)
            except FilterError as wrong:
                assert str(wrong).endswith("."), str(wrong)
    return found


def test_every_filter_of_every_page_is_known_here() -> None:
    """A page that gets filters of its own is looked at as well."""
    known = {id(fields) for fields in PAGES.values()}
    for module in pkgutil.iter_modules(wakeboard_dashboard.views.__path__, "wakeboard_dashboard.views."):
        for name, found in vars(importlib.import_module(module.name)).items():
            if isinstance(found, dict) and found and all(isinstance(each, Field) for each in found.values()):
                assert id(found) in known, f"{module.name}.{name}"


@pytest.mark.parametrize("path", PAGES)
def test_what_is_accepted_is_a_filter_there_is_and_asks_for_something(path: str) -> None:
    """Searches ask ``if value := …``: a value that counts as none would be dropped there."""
    fields = PAGES[path]
    found = accepted(fields)
    for (name, value), asked in found.items():
        is_path = "." in name and f"{name.split('.')[0]}." in fields and name.split(".", 1)[1] != ""
        assert (name in fields and not name.endswith(".")) or is_path, f"{name}={value}"
        assert list(asked.texts) == [name] and asked.values[name], f"{name}={value}"
    assert {name.partition(".")[0] for name, _ in found} == {name.rstrip(".") for name in fields}


@pytest.mark.parametrize("path", PAGES)
def test_every_filter_of_a_page_is_looked_at(
    path: str, client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(connection, "dead")
    a_definition(connection, "x")
    group = format_fingerprint(a_group(connection))
    address = path.format(group=group, operation=begin(connection, "retry"))
    looked = heard(monkeypatch)
    tried = set()
    for (name, value), _ in accepted(PAGES[path]).items():
        if name in tried:
            continue
        looked.clear()
        answer = client.get(f"{address}.json", query_string={name: value}, headers=JSON)
        if answer.status_code == 400:
            continue
        assert answer.status_code == 200, f"{name}={value}"
        assert name in looked, f"{address}.json?{name}={value}"
        tried.add(name)
    assert {name.partition(".")[0] for name in tried} == {name.rstrip(".") for name in PAGES[path]}


def heard(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of the filters that are asked for from now on."""
    found: set[str] = set()
    get, starting = FilterValues.get, FilterValues.starting

    def hear(self: FilterValues, name: str, default: Any = None) -> Any:
        found.add(name)
        return get(self, name, default)

    def hear_all(self: FilterValues, prefix: str) -> dict[str, Any]:
        found.update(name for name in self.values if name.startswith(prefix))
        return starting(self, prefix)

    monkeypatch.setattr(FilterValues, "get", hear)
    monkeypatch.setattr(FilterValues, "starting", hear_all)
    return found


def said(statement: Select[Any]) -> tuple[str, str]:
    compiled = statement.compile(dialect=postgresql.dialect(), compile_kwargs={"render_postcompile": True})
    return str(compiled), repr(sorted(compiled.params.items()))


@pytest.mark.parametrize(
    ("fields", "find"),
    [
        (runs.FIELDS, lambda asked: search.search(asked, NOW, lambda _: [1])),
        (audit.FIELDS, lambda asked: audit.search(asked, NOW)),
    ],
    ids=["runs", "audit"],
)
def test_what_is_accepted_changes_what_the_database_is_asked(
    fields: Fields, find: Callable[[FilterValues], Any]
) -> None:
    everything = said(find(FilterValues()).statement)
    for (name, value), asked in accepted(fields).items():
        try:
            assert said(find(asked).statement) != everything, f"{name}={value}"
        except FilterError:
            continue


# What the bulk verbs did with a filter that was dropped


@pytest.mark.parametrize(
    "query", ["status=queued&payload=customer7", "payload=5", "status=queued&payload.=5"]
)
def test_a_payload_without_a_path_moves_nothing_and_says_how_a_path_is_written(
    query: str, client: FlaskClient, connection: Connection
) -> None:
    run_id = a_run(connection, payload={"customer": 8})
    for answer in (
        client.post("/runs/bulk/cancel", json={"filter": query, "confirm": 1}, headers=JSON),
        client.post(f"/runs/bulk/cancel?{query}", headers=JSON),
        client.get(f"/runs/bulk/cancel.json?{query}"),
        client.get(f"/runs/bulk/cancel?{query}"),
        client.get(f"/runs?{query}", headers=JSON),
        client.get(f"/runs.json?{query}"),
    ):
        assert answer.status_code == 400
        assert "names nothing: write payload.&lt;path&gt;, such as payload.customer.id." in (
            answer.text.replace("<path>", "&lt;path&gt;")
        )
    assert status(connection, run_id) == "queued"


@pytest.mark.parametrize("line", ["payload:5", "payload.:5", "payload=5", "status:dead -payload:5"])
def test_a_terminal_begins_nothing_with_a_payload_without_a_path(
    line: str, database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)
    assert cli.run(["operations", "start", "retry", line, "--dry-run"]) == 2
    assert "payload" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["limit", "cursor", "also", "run", "next"])
def test_a_filter_text_takes_no_name_that_would_be_left_out(
    name: str, client: FlaskClient, connection: Connection
) -> None:
    """ "limit=1" reads as one run, and would have cancelled all that match."""
    ids = [a_run(connection) for _ in range(2)]
    query = f"status=queued&{name}=1"
    answer = client.post("/runs/bulk/cancel", json={"filter": query, "confirm": 2}, headers=JSON)
    assert answer.status_code == 400 and f"“{name}”" in answer.get_json()["message"]
    answer = client.post("/runs/views/save", json={"name": "All", "query": query}, headers=JSON)
    assert answer.status_code == 400 and f"“{name}”" in answer.get_json()["message"]
    if name in ("limit", "cursor"):
        assert client.get(f"/runs/bulk/cancel.json?{query}").status_code == 400
    assert [status(connection, each) for each in ids] == ["queued", "queued"]


@pytest.mark.parametrize("query", ["status=queued&type=", "status=&type=mail", "payload.a=", "="])
def test_an_empty_filter_moves_nothing(query: str, client: FlaskClient, connection: Connection) -> None:
    run_id = a_run(connection)
    for answer in (
        client.post("/runs/bulk/cancel", json={"filter": query, "confirm": 1}, headers=JSON),
        client.post(f"/runs/bulk/cancel?{query}", headers=JSON),
        client.get(f"/runs/bulk/cancel?{query}", headers=JSON),
        client.get(f"/runs/bulk/cancel.json?{query}"),
        client.post("/runs/views/save", json={"name": "All", "query": query}, headers=JSON),
        client.get(f"/runs.json?{query}"),
        client.get(f"/runs.csv?{query}", headers=JSON),
    ):
        assert answer.status_code == 400
        assert "is empty" in answer.get_json()["message"] or query == "="
    assert status(connection, run_id) == "queued"


@pytest.mark.parametrize("path", PAGES)
def test_the_controls_that_a_form_leaves_empty_ask_for_nothing(
    path: str, client: FlaskClient, connection: Connection
) -> None:
    if path == "/overview":
        return
    a_run(connection, "dead")
    group = format_fingerprint(a_group(connection))
    address = path.format(group=group, operation=begin(connection, "retry"))
    html = client.get(address).text
    for form in re.findall(r'<form [^>]*method="get".*?</form>', html, re.DOTALL):
        leads = re.search(r'action="([^"]*)"', form.split(">")[0])
        sent = dict.fromkeys(re.findall(r'<(?:input|select)[^>]* name="([^"]+)"', form), "")
        answer = client.get(leads[1] if leads else address, query_string=sent, follow_redirects=True)
        assert answer.status_code == 200, sent
        assert 'class="chip' not in answer.text


def test_a_control_that_is_emptied_takes_its_filter_away(client: FlaskClient) -> None:
    was = {"was.status": "dead", "was.type": "mail"}
    sent = {"text": "status:dead type:mail", **was, "status": "", "type": "mail"}
    answer = client.get("/runs/find", query_string=sent)
    assert answer.headers["Location"] == "/runs?type=mail"


def test_runs_and_a_filter_beside_them_are_refused(client: FlaskClient, connection: Connection) -> None:
    run_id = a_run(connection)
    both = {"run": [run_id], "filter": "status=queued&type=mail", "confirm": 1}
    for answer in (
        client.post("/runs/bulk/cancel", json=both, headers=JSON),
        client.post("/runs/bulk/cancel?status=dead", json={"run": [run_id]}, headers=JSON),
        client.get(f"/runs/bulk/cancel.json?run={run_id}&status=dead"),
    ):
        assert answer.status_code == 400
        assert answer.get_json()["message"].startswith("Runs and a filter are given")
    assert status(connection, run_id) == "queued"


def test_words_that_look_like_a_path_are_still_text_in_quotes() -> None:
    assert read_pairs(read_line('"payload:5" "payload=5"', runs.FIELDS), runs.FIELDS).texts == {
        "q": "payload:5 payload=5"
    }


@pytest.mark.parametrize(
    "path", [path for path, fields in PAGES.items() if "since" in fields and "until" in fields]
)
def test_a_stretch_of_time_upside_down_is_refused_on_every_page(
    path: str, client: FlaskClient, connection: Connection
) -> None:
    address = path.format(group=format_fingerprint(a_group(connection)), operation=0)
    for query in ("since=1h&until=1d", "since=2026-11-21&until=2026-11-20"):
        for twin in ("", ".json"):
            answer = client.get(f"{address}{twin}?{query}", headers=JSON)
            assert answer.status_code == 400, address
            assert "is not before “until”" in answer.get_json()["message"]
