"""A page and its JSON twin, asked the same: the ids, states and counts that both show are the same ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import NIGHT_TILES, SAME_ORIGIN
from tests.support.dashboard_apps import an_app
from tests.support.every_page import Filling, addresses, furnish, is_page, plain_text
from tests.support.factories import a_run
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard_dashboard.text.formats import anchor, number
from wakeboard_dashboard.web.connection import Database

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Told:
    """How a page tells what its twin tells.

    ``rows``: the start of the ids of its table rows, before ``key`` of the item; ``items`` finds them in the
    twin. ``numbers`` and ``words`` name what an item and its row both say. ``filters``: further query
    strings. ``whole``: what the twin says that stands somewhere on the page.
    """

    rows: str = ""
    key: Callable[[Json], object] = lambda item: item["id"]
    items: Callable[[Json], Sequence[Json]] = lambda body: body["items"]
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    whole: Callable[[Json], Sequence[object]] = lambda _: ()


def the_overview(body: Json) -> list[object]:
    counts = (
        "dead", "stuck", "failed", "missed_fires", "unconfirmed_effects", "running", "queued", "slots",
        "succeeded_attempts", "failed_attempts",
    )  # fmt: skip
    return [body["sentence"].split(".")[0], *(number(body[name]) for name in counts)]


def a_night(body: Json) -> list[object]:
    return [*(number(body[name]) for name in NIGHT_TILES), *(row["id"] for row in body["recovered_runs"])]


def a_run_told(body: Json) -> list[object]:
    return [
        body["status"] if not body["stuck"] else "stuck", body["attempts"], body["progress_done"],
        *(row["outcome"].replace("_", " ") for row in body["history"]),
        *(row["after"] for row in body["history"] if row["after"]),
        *(row["key"] for row in body["effects"]), *body["descendants"], *body["enqueued"],
        *body["slots"].values(), *(row["actor"] for row in body["audit"]), *body["payload"],
    ]  # fmt: skip


def a_schedule(body: Json) -> list[object]:
    return [
        body["job_type"], body["words"], *(row["id"] for row in body["runs"]),
        *(row["reason"] for row in body["missed_fires"]), *(row["actor"] for row in body["audit"]),
    ]  # fmt: skip


def a_system(body: Json) -> list[object]:
    return [
        *(row["name"] for row in (*body["loops"], *body["tables"], *body["indexes"], *body["settings"])),
        body["refused_answers_24h"], body["server"]["max_connections"],
    ]  # fmt: skip


def a_type_told(body: Json) -> list[object]:
    return [
        body["name"], body["state"], body["retries"], *(number(body[each]) for each in LOADS),
        *(row["id"] for row in body["runs"]), *(row["name"] for row in body["workers"]),
    ]  # fmt: skip


def a_worker_told(body: Json) -> list[object]:
    return [
        body["state"], body["hostname"], body["concurrency"], *(row["id"] for row in body["runs"]),
        *(row["run_id"] for row in body["ends"]), *body["job_types"],
    ]  # fmt: skip


def an_error_group(body: Json) -> list[object]:
    return [
        body["error_code"], body["job_type"], body["state"], body["template"], body["frame"],
        body["muted_by"], body["muted_reason"], number(body["count"]), body["fingerprint"],
        *(row["run_id"] for row in body["newest"]), *(number(row["failures"]) for row in body["workers"]),
    ]  # fmt: skip


def an_operation(body: Json) -> list[object]:
    return [
        body["status"], body["sentence"], body["actor"], body["reason"], number(body["total"]),
        number(body["done"]), *(row["run_id"] for row in body["items"]),
    ]  # fmt: skip


def a_preview(body: Json) -> list[object]:
    return [
        number(body["counted"]), *(number(count) for count in body["states"].values()),
        *(number(row["runs"]) for row in body["left"]),
        *(run for row in body["left"] for run in row["examples"]),
    ]  # fmt: skip


LOADS = ("queued", "running", "failed", "dead", "succeeded_24h")
# A new page says here how it and its twin are the same; one that does not fails the first test below.
TOLD: dict[str, Told] = {
    "/": Told(whole=the_overview, filters=("window=1h", "window=7d")),
    "/runs": Told(
        "run", numbers=("id", "attempts"), words=("status", "job_type"),
        filters=("status=dead", "status=queued,failed", "attempts=1%2B", "limit=2", "q=nothing", "since=1h"),
    ),
    "/runs/<id:run_id>": Told(whole=a_run_told),
    "/runs/<id:run_id>/payload": Told(whole=lambda body: list(body["payload"])),
    "/runs/<id:run_id>/attempts/<id:lease_epoch>": Told(
        whole=lambda body: [body[name] for name in ("attempt", "outcome", "error_code", "traceback")]
    ),
    "/errors": Told(
        "error", key=lambda item: None, numbers=("count",), words=("error_code", "job_type"),
        items=lambda body: [row for row in body["items"] if not row["muted_until"]], filters=("since=1h",),
    ),
    "/errors/<group:fingerprint>": Told(whole=an_error_group),
    "/errors/<path:code>": Told(
        "failure", key=lambda item: None, items=lambda body: body["newest"], numbers=("run_id", "attempt"),
        whole=lambda body: [number(group["count"]) for group in body["items"]],
    ),
    "/operations": Told(
        "operation", numbers=("done", "skipped", "failed"), words=("status", "actor"), filters=("limit=1",)
    ),
    "/operations/<id:operation_id>": Told(whole=an_operation),
    "/runs/bulk/<verb>": Told(whole=a_preview),
    "/types/<path:name>": Told(whole=a_type_told),
    "/workers/<path:name>": Told(whole=a_worker_told),
    "/leases": Told(
        "lease", numbers=("id", "attempts"), words=("job_type",), filters=("state=ended,silent", "limit=1")
    ),
    "/schedules": Told(
        "schedule", key=lambda item: item["name"], numbers=("missed_24h", "last_run_id"),
        words=("last_run_status", "job_type"), filters=("state=paused", "limit=1"),
    ),
    "/schedules/<name>": Told(whole=a_schedule),
    "/schedules/<name>/missed": Told("missed", words=("reason",), filters=("limit=1",)),
    "/types": Told(
        "type", key=lambda item: anchor(item["name"]), numbers=("queued", "running", "failed", "dead"),
        words=("name",), filters=("state=paused", "limit=1"),
    ),
    "/workers": Told(
        "worker", numbers=("concurrency",), words=("state", "hostname"), filters=("state=silent",)
    ),
    "/effects": Told("effect", numbers=("run_id", "attempt"), words=("run_status",), filters=("limit=1",)),
    "/audit": Told("audit", words=("actor", "result", "reason"), filters=("target=run", "limit=1")),
    "/alerts": Told(
        "rule", words=("status",), whole=lambda body: [row["subject"] for row in body["messages"]]
    ),
    "/night": Told(
        "ran", key=lambda item: anchor(item["job_type"]), numbers=("attempts", "succeeded", "failed"),
        words=("job_type",), filters=("since=2h",), whole=a_night,
    ),
    "/system": Told(whole=a_system),
}  # fmt: skip


@pytest.fixture(scope="module")
def house(shared_database: str, shared: Connection) -> Iterator[tuple[Flask, FlaskClient, Filling]]:
    """A dashboard over rows of every kind, with more of some than of others."""
    filling = furnish(shared, plain_text(), plain_text("kind"))
    for state, many in (("dead", 3), ("queued", 5), ("failed", 2)):
        for _ in range(many):
            a_run(shared, state, job_type="kind0")
    app = an_app(database_url=shared_database)
    client = app.test_client()
    client.environ_base.update(SAME_ORIGIN)
    cookie = sessions.open_session(shared, "anna", Role.ADMIN)
    client.set_cookie(f"wakeboard_{users.install_id(shared)}", cookie)
    yield app, client, filling
    engines: Database = app.extensions["wakeboard_database"]
    engines.dispose()


def text_of(html: str) -> str:
    """Return what a reader sees of a piece of a page, single spaces, narrow ones kept."""
    words = unescape(re.sub(r"<(svg|title)\b.*?</\1>|<[^>]+>", " ", html, flags=re.DOTALL))
    return " ".join(re.split(r"[ \n\t]+", words))


def rows_of(html: str, start: str) -> list[tuple[str, str]]:
    """Return (rest of the id, text) of each table row whose id has this start."""
    found = re.findall(rf'<tr id="{start}-([^"]*)"[^>]*>(.*?)</tr>', html, re.DOTALL)
    return [(unescape(rest), text_of(row)) for rest, row in found]


def differences(html: str, body: Json, told: Told) -> list[str]:
    """Return what a page does not tell as its twin does."""
    wrong = []
    items, rows = (told.items(body), rows_of(html, told.rows)) if told.rows else ((), [])
    if told.rows and len(items) != len(rows):
        return [f"{len(rows)} rows on the page, {len(items)} in the twin"]
    for item, (rest, text) in zip(items, rows, strict=True):
        if told.key(item) is not None and str(told.key(item)) != rest:
            wrong.append(f"row {rest} stands where the twin has {told.key(item)}")
        said = [(name, number(item[name])) for name in told.numbers if item[name] is not None]
        said += [(name, str(item[name]).replace("_", " ")) for name in told.words if item[name] is not None]
        # A run whose lease ended is shown as stuck, whatever its status; ids have no narrow spaces.
        seen = text.replace("stuck", "stuck running").replace("\u202f", "").replace("_", " ")
        wrong += [
            f"row {rest} does not say {name} {value}: {text[:200]}"
            for name, value in said
            if value.replace("\u202f", "")[:40] not in seen
        ]
    middle = text_of(html.split("<main")[1].split("</main>")[0])
    return wrong + [f"nowhere: {value!r}" for value in told.whole(body) if not says(middle, value)]


def says(text: str, value: object) -> bool:
    return value is None or str(value) in text or number_like(value) in text


def number_like(value: object) -> str:
    return number(value) if isinstance(value, int) else str(value)


def test_each_page_has_a_twin_that_is_compared_here(house: tuple[Flask, FlaskClient, Filling]) -> None:
    app, _, filling = house
    twins = {rule.removesuffix(".json") for rule in addresses(app, filling) if rule.endswith(".json")}
    pages = {"/" if page == "/overview" else page for page in twins}
    assert pages - set(TOLD) == set(), "say in TOLD what these pages and their twins both tell"
    assert set(TOLD) - pages == set(), "these are told of and are not there"
    rules = {rule for rule in addresses(app, filling) if is_page(rule)}
    assert pages <= rules


def test_a_page_and_its_twin_tell_the_same(house: tuple[Flask, FlaskClient, Filling]) -> None:
    app, client, filling = house
    wrong = []
    found = addresses(app, filling)
    for rule, told in TOLD.items():
        twins = found["/overview.json" if rule == "/" else f"{rule}.json"]
        for page, twin in zip(found[rule], twins, strict=True):
            for query in ("", *told.filters):
                asked = [query] if query else []
                wrong += compare(client, with_query(page, *asked), with_query(twin, *asked), told)
    assert not wrong, "\n".join(wrong)


def with_query(address: str, *queries: str) -> str:
    path, _, own = address.partition("?")
    query = queries[0] if queries else own
    return f"{path}?{query}" if query else path


def compare(client: FlaskClient, page: str, twin: str, told: Told) -> list[str]:
    shown, body = client.get(page), client.get(twin)
    if shown.status_code != 200 or body.status_code != 200:
        return [f"{page}: {shown.status_code}, {twin}: {body.status_code}"]
    html = shown.text
    return [f"{page}: {each}" for each in differences(html, body.get_json(), told)]


def test_a_list_and_its_csv_have_the_same_rows(house: tuple[Flask, FlaskClient, Filling]) -> None:
    app, client, filling = house
    for rule, (address, *_) in addresses(app, filling).items():
        if rule.endswith(".csv"):
            # First the twin: a CSV that is taken is a line of the audit log.
            items = client.get(address.replace(".csv", ".json")).get_json()["items"]
            lines = client.get(address).text.splitlines()
            assert len(lines) == len(items) + 1 > 1, address
