"""Where many attempts failed, those that ended a while ago are remembered: the answers are the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flask import Flask, g
from flask.testing import FlaskClient
from sqlalchemy import Connection as Session
from sqlalchemy import event

from tests.conftest import Connection
from tests.dashboard.remembering import DAY, HOUR, note_removal
from tests.factories import a_group, a_run, a_type
from wakeboard.core.errors.error_groups import written
from wakeboard_dashboard.pages import baselines, kept
from wakeboard_dashboard.queries import errors, groups
from wakeboard_dashboard.queries.errors import Found, Window
from wakeboard_dashboard.queries.failures import lately, named, remembered
from wakeboard_dashboard.queries.failures.remembered import Memory
from wakeboard_dashboard.queries.nights import failures as night_failures
from wakeboard_dashboard.views import errors as errors_page
from wakeboard_dashboard.web.connection import Database

SHOWN = 12


@pytest.fixture(autouse=True)
def small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of failures are as thousands elsewhere."""
    monkeypatch.setattr(lately, "WORTH", 10)
    monkeypatch.setattr(errors, "MOST_GROUPS", SHOWN)
    monkeypatch.setattr(night_failures, "MOST_SHOWN", SHOWN)


@pytest.fixture
def awkward(connection: Connection) -> list[int]:
    """Failures of thirty groups in two days, many as often as others, some muted, some of runs alone."""
    numbers = [
        a_group(connection, f"type_{place % 5}", message=f"it broke {place // 5 * 'x'}")
        for place in range(30)
    ]
    for place, number in enumerate(numbers):
        failed(connection, number, times=1 + place % 4, ago=place * timedelta(minutes=95), step=7 * HOUR)
        failed(connection, number, times=place % 3, ago=place * timedelta(minutes=1), step=HOUR / 3)
    for number in numbers[3:6]:
        a_run(connection, "dead", job_type=type_of(connection, number), error_group=number)
    a_run(connection, "failed", job_type="type_9", error_group=a_group(connection, "type_9"))
    connection.execute(
        "UPDATE wakeboard.error_groups SET muted_until = now() + interval '1 day', muted_at = now(),"
        " muted_by = 'anna' WHERE id = ANY(%s)",
        (numbers[5:8],),
    )
    return numbers


def type_of(connection: Connection, number: int) -> str:
    row = connection.execute(
        "SELECT job_type FROM wakeboard.error_groups WHERE id = %s", (number,)
    ).fetchone()
    assert row
    return str(row[0])


def failed(
    connection: Connection, number: int | None, times: int, ago: timedelta, step: timedelta = HOUR
) -> None:
    """Let a group fail so many times, first so long ago and then each ``step`` before, of no two at once."""
    connection.execute(
        """INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at,
            started_at, finished_at, outcome, error_code, error, error_group)
        SELECT 7, had + n, had + n, coalesce(g.job_type, 'mail'), 'w1', now(), now(),
            now() - %(ago)s - n * %(step)s - had * interval '1 millisecond', 'failed',
            coalesce(g.error_code, 'smtp_down'), 'no', %(number)s
        FROM generate_series(1, %(times)s) AS n
        CROSS JOIN (SELECT count(*) AS had FROM wakeboard.job_attempts) AS before
        LEFT JOIN wakeboard.error_groups AS g ON g.id = %(number)s""",
        {"number": number, "times": times, "ago": ago - step, "step": step},
    )


def now_of(connection: Connection) -> datetime:
    row = connection.execute("SELECT now()").fetchone()
    assert row
    moment: datetime = row[0]
    return moment


def asked(session: Session, found: Found) -> dict[str, Any]:
    """Return all that is told of the groups, whichever way it was found."""
    types = found.types if found.types is not None else groups.types_of_the_same(session, found.numbers)
    return {
        "heard": found.heard,
        "muted": found.muted,
        "count": found.count,
        "is_cut": found.is_cut,
        "are_runs_cut": found.are_runs_cut,
        "types": {same: sorted(each) for same, each in types.items()},
    }


@pytest.fixture
def read_from_memory(app: Flask) -> Iterator[list[datetime]]:
    """From when on the app has asked for failed attempts to remember; it fails when the app never did."""
    engines: Database = app.extensions["wakeboard_database"]
    since: list[datetime] = []
    note_reads(engines.pages, since)
    yield since
    assert since, "everything was asked of the database"


def note_reads(source: object, since: list[datetime]) -> None:
    """Have ``since`` of each statement noted that reads attempts to be remembered."""
    event.listen(
        source,
        "before_cursor_execute",
        lambda _session, _cursor, sql, values, *_: (
            since.append(values["since"]) if "int8send(error_group)" in sql else None
        ),
    )


def assert_same(memory: Memory, session: Session, window: Window, now: datetime, **how: Any) -> Found:
    """Assert that memory and database tell the same; return what memory tells."""
    how = {"most": SHOWN} | how
    found = remembered.every(memory, session, window, now, **how)
    whole = errors.every(session, window, **how)
    assert asked(session, found) == asked(session, whole)
    return found


def warm(session: Session, now: datetime, length: timedelta = DAY) -> Memory:
    """Return a memory that remembers the window of ``length`` that ends ``now``."""
    memory = Memory()
    for _ in range(2):
        assert_same(memory, session, ending_now(now, length), now)
    return memory


def ending_now(now: datetime, length: timedelta, **narrowed: Any) -> Window:
    return Window(now + timedelta(seconds=1) - length, now + timedelta(seconds=1), **narrowed)


@pytest.mark.parametrize("cap", [25, 40, 20_000])
@pytest.mark.usefixtures("awkward")
def test_what_is_remembered_is_what_the_database_tells(
    connection: Connection, session: Session, monkeypatch: pytest.MonkeyPatch, cap: int
) -> None:
    monkeypatch.setattr(errors, "CAP", cap)
    monkeypatch.setattr(errors, "RUNS_CAP", cap // 10)
    memory, now = Memory(), now_of(connection)
    for length in (DAY, DAY, HOUR, DAY, 2 * DAY, DAY / 3, 2 * DAY, timedelta(milliseconds=5)):
        found = assert_same(memory, session, ending_now(now, length), now)
    assert found.types is not None
    for narrowed in (
        {"code": "smtp_down"},
        {"job_type": "type_2"},
        {"code": "smtp_down", "job_type": "type_1"},
    ):
        for _ in range(3):
            assert_same(memory, session, ending_now(now, 2 * DAY, **narrowed), now)
    for how in ({"most": None}, {"apart": False}, {"apart": False, "most": 3}):
        assert_same(memory, session, ending_now(now, DAY), now, **how)


@pytest.mark.parametrize("cap", [30, 20_000])
def test_failures_that_come_are_told_at_once_and_the_window_moves_on(
    connection: Connection, session: Session, monkeypatch: pytest.MonkeyPatch, cap: int, awkward: list[int]
) -> None:
    monkeypatch.setattr(errors, "CAP", cap)
    memory, now = Memory(), now_of(connection)
    now = now.replace(minute=1, second=0)
    for step in range(8):
        assert_same(memory, session, ending_now(now, DAY), now)
        number = awkward[step % 3]
        failed(
            connection, number, times=2, ago=now_of(connection) - now + timedelta(seconds=3), step=HOUR / 9
        )
        assert_same(memory, session, ending_now(now, DAY), now)
        now += timedelta(minutes=7)
    assert assert_same(memory, session, ending_now(now, DAY), now).types is not None


@pytest.mark.usefixtures("awkward")
def test_only_what_is_not_settled_is_asked_for_again(connection: Connection, session: Session) -> None:
    since: list[datetime] = []
    note_reads(session, since)
    memory, now = Memory(), now_of(connection)
    for _ in range(3):
        remembered.every(memory, session, ending_now(now, DAY), now)
    first, second = since
    assert first == ending_now(now, DAY).since
    assert now - lately.SETTLES - lately.PACE <= second <= now - lately.SETTLES


def test_what_is_written_long_after_it_ended_is_told_within_ten_minutes(
    connection: Connection, session: Session, awkward: list[int]
) -> None:
    now = now_of(connection).replace(minute=2)
    memory = warm(session, now)
    failed(connection, awkward[0], times=3, ago=now_of(connection) - now + HOUR, step=HOUR / 60)
    later = now + lately.HOLDS
    assert assert_same(memory, session, ending_now(later, DAY), later).types is not None


@pytest.mark.usefixtures("awkward")
def test_what_retention_removes_is_told_no_more(connection: Connection, session: Session) -> None:
    now = now_of(connection)
    memory = warm(session, now, 2 * DAY)
    connection.execute("DELETE FROM wakeboard.job_attempts WHERE finished_at < now() - interval '25 hours'")
    note_removal(connection)
    assert assert_same(memory, session, ending_now(now, 2 * DAY), now).types is not None


@pytest.mark.usefixtures("awkward")
def test_failures_without_a_group_are_counted_by_the_database(
    connection: Connection, session: Session
) -> None:
    now = now_of(connection)
    memory = warm(session, now)
    failed(connection, None, times=2, ago=timedelta(minutes=3), step=HOUR / 60)
    for _ in range(2):
        found = assert_same(memory, session, ending_now(now, DAY), now)
        assert any(group.number is None for group in found.heard) and found.types is None
    connection.execute("DELETE FROM wakeboard.job_attempts WHERE error_group IS NULL")
    later = now + HOUR
    assert assert_same(memory, session, ending_now(later, DAY), later).types is not None


def test_a_group_whose_row_is_gone_is_counted_by_the_database(
    connection: Connection, session: Session, awkward: list[int]
) -> None:
    connection.execute("DELETE FROM wakeboard.error_groups WHERE id = %s", (awkward[0],))
    memory, now = Memory(), now_of(connection)
    for _ in range(3):
        assert assert_same(memory, session, ending_now(now, DAY), now).types is None


@pytest.mark.usefixtures("awkward")
def test_more_groups_than_are_named_are_counted_by_the_database(
    connection: Connection, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named, "MOST_NAMED", 5)
    memory, now = Memory(), now_of(connection)
    for _ in range(3):
        assert assert_same(memory, session, ending_now(now, DAY), now).types is None


@pytest.mark.usefixtures("awkward")
def test_a_window_that_ended_a_while_ago_is_counted_by_the_database(
    connection: Connection, session: Session
) -> None:
    now = now_of(connection)
    memory = warm(session, now)
    ended = Window(now - DAY, now - 5 * HOUR)
    assert assert_same(memory, session, ended, now).types is None
    newer = Window(now - DAY, now - timedelta(minutes=10))
    assert assert_same(memory, session, newer, now).types is not None


def test_few_failures_are_never_remembered(connection: Connection, session: Session) -> None:
    memory, now = Memory(), now_of(connection)
    number = a_group(connection)
    for _ in range(3):
        failed(connection, number, times=1, ago=5 * HOUR)
        assert assert_same(memory, session, ending_now(now, DAY), now).types is None


def test_the_first_step_has_what_is_before_it_as_well() -> None:
    assert remembered._by_step([10, 11, 20], [12, 18]) == [2, 1]
    assert remembered._by_step([10, 11, 20], [5, 11]) == [1, 2]


@pytest.mark.usefixtures("read_from_memory")
@pytest.mark.parametrize("query", ["since=2d", "since=2d&by=day", "since=1h", "since=5h", ""])
def test_the_trend_of_a_group_is_the_same_from_memory(
    client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    number, other = a_group(connection), a_group(connection, "report")
    failed(connection, number, times=30, ago=timedelta(minutes=1), step=timedelta(minutes=17))
    failed(connection, number, times=12, ago=timedelta(minutes=1), step=timedelta(seconds=9))
    failed(connection, other, times=40, ago=timedelta(minutes=1), step=timedelta(minutes=8))

    def steps() -> Any:
        return client.get(f"/errors/{written(number)}.json?{query}").get_json()["trend"]

    monkeypatch.setattr(lately, "WORTH", 10**9)
    before = steps()
    counted = sum(step["count"] for step in before)
    assert counted >= 12
    monkeypatch.setattr(lately, "WORTH", 10)
    for _ in range(3):
        assert steps() == before
    failed(connection, number, times=1, ago=timedelta(seconds=2))
    assert sum(step["count"] for step in steps()) == counted + 1


def test_at_most_six_questions_are_remembered(connection: Connection, session: Session) -> None:
    memory, now = Memory(), now_of(connection)
    for place in range(8):
        failed(connection, a_group(connection, f"type_{place}"), times=30, ago=2 * HOUR, step=HOUR / 60)
    for place in range(8):
        for _ in range(2):
            found = assert_same(memory, session, ending_now(now, DAY, job_type=f"type_{place}"), now)
        assert found.types is not None
    assert len(memory.lately._kept) == lately.MOST_KEPT


@pytest.mark.usefixtures("awkward", "read_from_memory")
@pytest.mark.parametrize("path", ["/errors", "/errors?since=2d", "/errors?state=new", "/errors/smtp_down"])
def test_pages_and_twins_show_the_same_from_memory(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    address, _, query = path.partition("?")
    twin = f"{address}.json?{query}"

    def shown() -> tuple[str, Any]:
        rows = client.get(path).get_data(as_text=True).split("<tbody>")[1].split("</tbody>")[0]
        return rows, client.get(twin).get_json()["items"]

    monkeypatch.setattr(lately, "WORTH", 10**9)
    before = shown()
    assert before[1]
    monkeypatch.setattr(lately, "WORTH", 10)
    for _ in range(3):
        assert shown() == before


@pytest.mark.usefixtures("awkward", "read_from_memory")
def test_a_night_that_is_not_over_tells_the_same_from_memory(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that stands still, where the last 24 hours move on with each minute.
    now = datetime.now(UTC)
    window = (
        f"since={now - timedelta(days=1):%Y-%m-%dT%H:%M}Z&until={now + timedelta(hours=1):%Y-%m-%dT%H:%M}Z"
    )

    def shown() -> tuple[str, Any]:
        page = client.get(f"/night?{window}").get_data(as_text=True)
        twin = client.get(f"/night.json?{window}").get_json()
        return page.split('id="failed"')[1].split("</table>")[0], twin

    monkeypatch.setattr(lately, "WORTH", 10**9)
    before = shown()
    assert len(before[1]["failures"]) == SHOWN
    monkeypatch.setattr(lately, "WORTH", 10)
    for _ in range(3):
        rows, twin = shown()
        assert rows == before[0]
        for name in ("failures", "failed_runs", "recovered_runs", "taken_over_runs"):
            assert twin[name] == before[1][name]


def test_who_reads_from_a_late_replica_neither_takes_nor_leaves_anything(
    app: Flask,
) -> None:
    with app.test_request_context("/errors"):
        found = errors_page.memory()
        assert errors_page.memory() is found
        g.behind_seconds = 3600.0
        assert errors_page.memory() is not found
        g.behind_seconds = 0.0
        assert errors_page.memory() is found


@pytest.mark.parametrize("page", ["/", "/?window=7d", "/types", "/night", "/night?since=24h", "/errors"])
def test_no_page_keeps_what_a_late_replica_tells(
    app: Flask, client: FlaskClient, connection: Connection, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    a_type(connection, "mail")
    passing = {name for name in app.extensions if name.startswith("wakeboard_")}
    for module in (kept, baselines):
        monkeypatch.setattr(module, "late_seconds", lambda: 3600.0)
    assert client.get(page).status_code == 200
    settled = {"wakeboard_attention", "wakeboard_cookie", "wakeboard_request_metrics", "wakeboard_has_shop"}
    assert {name for name in app.extensions if name.startswith("wakeboard_")} - passing <= settled
    monkeypatch.undo()
    client.get(page)
    assert {name for name in app.extensions if name.startswith("wakeboard_")} - passing - settled
