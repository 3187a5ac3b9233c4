"""Schedules whose latest runs are plain are surveyed once, and are found as soon as one of them is odd."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from flask.testing import FlaskClient
from sqlalchemy import Connection as Session
from sqlalchemy import RowMapping

from dashboard.queries import fires, plain_schedules
from tests.conftest import Connection
from tests.factories import a_definition, a_run, from_now

WORDS = ("late", "overlapping", "twice")
ALL = ",".join(WORDS)


def a_fire(
    connection: Connection, definition: int, ago: int, status: str = "succeeded", late: int = 0
) -> int:
    """Write a run that was due so many minutes ago, and began and ended ``late`` minutes after that."""
    at = from_now(f"-{ago - late} minutes")
    return a_run(
        connection, status, definition_id=definition, scheduled_for=from_now(f"-{ago} minutes"),
        started_at=at, finished_at=at, attempts=1, lease_epoch=1,
    )  # fmt: skip


@pytest.fixture
def surveyed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The definitions that are surveyed, as they are."""
    told: list[int] = []
    survey = fires.surveyed

    def spy(session: Session, ids: Sequence[int], words: Collection[str]) -> dict[int, RowMapping]:
        told.extend(ids)
        return survey(session, ids, words)

    monkeypatch.setattr(fires, "surveyed", spy)
    return told


@pytest.fixture
def plain(client: FlaskClient, connection: Connection, surveyed: list[int]) -> list[int]:
    """Two schedules that the process knows to be plain; ``surveyed`` begins after that."""
    made = [a_definition(connection, name) for name in ("calm", "mine")]
    for definition in made:
        for ago in (180, 120, 60):
            a_fire(connection, definition, ago)
    assert names(client) == []
    assert surveyed == made
    surveyed.clear()
    return made


def names(client: FlaskClient, words: str = ALL) -> list[str]:
    items = client.get(f"/schedules.json?state={words}").get_json()["items"]
    return [each["name"] for each in items]


@pytest.mark.parametrize("words", [*WORDS, ALL])
def test_what_is_plain_is_surveyed_once(
    client: FlaskClient, plain: list[int], surveyed: list[int], words: str
) -> None:
    assert names(client, words) == [] and surveyed == []


def test_a_schedule_that_has_fired_since_is_surveyed_again(
    client: FlaskClient, connection: Connection, plain: list[int], surveyed: list[int]
) -> None:
    a_fire(connection, plain[1], 30, late=20)
    assert names(client) == names(client, "late") == ["mine"]
    assert surveyed == [plain[1]] * 2, "and each time, for it is odd"


def test_a_run_by_hand_is_one_since(
    client: FlaskClient, connection: Connection, plain: list[int], surveyed: list[int]
) -> None:
    a_run(connection, "succeeded", definition_id=plain[0], started_at=from_now("-2 hours"))
    assert names(client, "overlapping") == ["calm"]
    assert surveyed == [plain[0]]


@pytest.mark.parametrize("most", [plain_schedules.MOST_AGAIN, 1])
def test_what_was_run_again_is_done_twice(
    client: FlaskClient, connection: Connection, plain: list[int], surveyed: list[int],
    monkeypatch: pytest.MonkeyPatch, most: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(plain_schedules, "MOST_AGAIN", most)
    runs = connection.execute(
        "SELECT id FROM wakeboard.job_runs WHERE definition_id = %s ORDER BY id", (plain[1],)
    ).fetchall()
    for (run,) in runs[:2]:
        a_run(connection, "succeeded", origin_run_id=run, enqueued_by="anna")
    assert names(client, "twice") == ["mine"]
    assert surveyed == (plain if most == 1 else plain[1:])
    assert names(client, "late") == []


@pytest.mark.parametrize("status", ["dead", "succeeded"])
def test_what_may_still_change_is_not_kept(
    client: FlaskClient, connection: Connection, surveyed: list[int], status: str
) -> None:
    definition = a_definition(connection, "mine")
    a_fire(connection, definition, 60 if status == "dead" else 0, status)
    assert names(client) == []
    assert names(client) == []
    assert surveyed == [definition] * 2
