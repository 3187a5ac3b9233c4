"""Schedules whose latest runs have ended are looked at once, and again as soon as anything changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import pytest
from flask.testing import FlaskClient
from sqlalchemy import Connection as Session
from sqlalchemy import RowMapping

from tests.conftest import Connection
from tests.factories import a_definition, a_run, from_now
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import cancel, retry_now
from wakeboard_dashboard.queries import fires, known_schedules

ANNA = Actor("anna", Role.OPERATOR, "test")
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
    assert surveyed == [plain[1]], "once: it is told whole then"


def test_a_run_by_hand_is_one_since(
    client: FlaskClient, connection: Connection, plain: list[int], surveyed: list[int]
) -> None:
    a_run(connection, "succeeded", definition_id=plain[0], started_at=from_now("-2 hours"))
    assert names(client, "overlapping") == ["calm"]
    assert surveyed == [plain[0]]


def test_what_is_left_when_plain_runs_were_removed_is_looked_at(
    client: FlaskClient, connection: Connection, surveyed: list[int]
) -> None:
    definition = a_definition(connection, "mine")
    late = a_fire(connection, definition, 3000, late=20)
    for ago in range(20, 0, -1):
        a_fire(connection, definition, 60 * ago)
    assert names(client) == names(client) == [] and surveyed == [definition]
    connection.execute("DELETE FROM wakeboard.job_runs WHERE id > %s", (late,))
    assert names(client) == names(client, "late") == ["mine"]


@pytest.mark.parametrize("most", [known_schedules.MOST_AGAIN, 1])
def test_what_was_run_again_is_done_twice(
    client: FlaskClient, connection: Connection, plain: list[int], surveyed: list[int],
    monkeypatch: pytest.MonkeyPatch, most: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(known_schedules, "MOST_AGAIN", most)
    runs = connection.execute(
        "SELECT id FROM wakeboard.job_runs WHERE definition_id = %s ORDER BY id", (plain[1],)
    ).fetchall()
    for (run,) in runs[:2]:
        a_run(connection, "succeeded", origin_run_id=run, enqueued_by="anna")
    assert names(client, "twice") == ["mine"]
    assert surveyed == (plain if most == 1 else plain[1:])
    assert names(client, "late") == []


@pytest.mark.parametrize("status", ["failed", "succeeded"])
def test_what_may_still_change_is_not_kept(
    client: FlaskClient, connection: Connection, surveyed: list[int], told_whole: list[int], status: str
) -> None:
    definition = a_definition(connection, "mine")
    if status == "failed":
        a_run(connection, "failed", definition_id=definition, failed_at="-1 hour", run_at="1 hour")
    else:
        a_fire(connection, definition, 0)
    assert names(client) == names(client) == []
    assert surveyed == [definition] * 2
    client.get("/schedules")
    told_whole.clear()
    client.get("/schedules")
    assert told_whole == [definition]


class Told(NamedTuple):
    """A schedule that the process knows: its definition and its runs, the oldest first."""

    definition: int
    dead: int
    plain: int
    recovered: int
    newest: int
    reserved: int


@pytest.fixture
def mine(client: FlaskClient, connection: Connection, told_whole: list[int]) -> Told:
    """A schedule of which all runs have ended, one of them after a retry and one of them dead."""
    definition = a_definition(connection, "mine")
    dead = a_run(
        connection, "dead", definition_id=definition, scheduled_for=from_now("-300 minutes"),
        started_at="-290 minutes", failed_at="-289 minutes", finished_at="-289 minutes",
    )  # fmt: skip
    plain = a_fire(connection, definition, 240)
    recovered = a_run(
        connection, "succeeded", definition_id=definition, scheduled_for=from_now("-180 minutes"),
        started_at="-170 minutes", finished_at="-169 minutes", attempts=2, failures=1, lease_epoch=2,
    )  # fmt: skip
    (reserved,) = connection.execute("SELECT nextval('wakeboard.job_runs_id_seq')").fetchone() or (0,)
    found = Told(definition, dead, plain, recovered, a_fire(connection, definition, 60), reserved)
    marks(client)
    assert told_whole == [definition]
    told_whole.clear()
    return found


def marks(client: FlaskClient) -> str:
    """What the page shows of the latest runs."""
    page = client.get("/schedules").get_data(as_text=True)
    return page[page.index('<span class="strip">') : page.index("</td>", page.index('<span class="strip">'))]


def test_runs_that_have_ended_are_told_once(client: FlaskClient, told_whole: list[int], mine: Told) -> None:
    shown = marks(client)
    for run, status in zip(mine[1:5], ("dead", "succeeded", "succeeded", "succeeded"), strict=True):
        assert f"Run {run}: {status}" in shown
    assert names(client) == ["mine"] and told_whole == [], "nor does the filter ask for them"


def test_no_more_schedules_are_kept_than_there_is_room_for(
    client: FlaskClient, connection: Connection, told_whole: list[int], mine: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(known_schedules, "MOST_KEPT", 1)
    other = a_definition(connection, "other")
    a_fire(connection, other, 60)
    shown = marks(client)
    assert told_whole == [other]
    assert marks(client) == shown and told_whole == [other, mine.definition], "the one told last is known"


def retry_it(connection: Connection, mine: Told) -> None:
    assert retry_now(connection, mine.dead, ANNA).ok


def retry_it_until_it_is_dead_again(connection: Connection, mine: Told) -> None:
    retry_it(connection, mine)
    connection.execute(
        """UPDATE wakeboard.job_runs SET status = 'dead', finished_at = now(), failed_at = now(),
        error_code = 'disk_full' WHERE id = %s""",
        (mine.dead,),
    )


def cancel_it(connection: Connection, mine: Told) -> None:
    assert cancel(connection, mine.dead, ANNA).ok


def answer_late(connection: Connection, mine: Told) -> None:
    connection.execute(
        """UPDATE wakeboard.job_attempts SET outcome = 'lost', refused_at = now(),
        refused_outcome = 'succeeded' WHERE run_id = %s AND attempt = 1""",
        (mine.recovered,),
    )


def run_it_again(connection: Connection, mine: Told) -> None:
    a_run(connection, "succeeded", origin_run_id=mine.newest, enqueued_by="anna")


def run_it_again_for_now_in_vain(connection: Connection, mine: Told) -> None:
    a_run(connection, "queued", origin_run_id=mine.newest, enqueued_by="anna")


def fire(connection: Connection, mine: Told) -> None:
    a_run(connection, "running", definition_id=mine.definition, scheduled_for=from_now("-1 minute"))


def run_by_hand(connection: Connection, mine: Told) -> None:
    a_run(connection, "queued", definition_id=mine.definition)


def remove(connection: Connection, run: int) -> None:
    connection.execute("DELETE FROM wakeboard.job_attempts WHERE run_id = %s", (run,))
    connection.execute("DELETE FROM wakeboard.job_runs WHERE id = %s", (run,))


def remove_the_oldest(connection: Connection, mine: Told) -> None:
    remove(connection, mine.dead)


def remove_a_plain_one(connection: Connection, mine: Told) -> None:
    remove(connection, mine.plain)


def remove_the_newest(connection: Connection, mine: Told) -> None:
    remove(connection, mine.newest)


def remove_all_but_the_oldest(connection: Connection, mine: Told) -> None:
    for run in (mine.plain, mine.recovered, mine.newest):
        remove(connection, run)


def fire_when_a_plain_one_is_removed(connection: Connection, mine: Told) -> None:
    fire(connection, mine)
    remove(connection, mine.plain)


def commit_one_from_before(connection: Connection, mine: Told) -> None:
    """Of a transaction that took long the run has a lower number than those that ended meanwhile."""
    a_run(connection, "queued", definition_id=mine.definition, id=mine.reserved)


@pytest.mark.parametrize(
    "change",
    [
        retry_it, retry_it_until_it_is_dead_again, cancel_it, answer_late, run_it_again,
        run_it_again_for_now_in_vain, fire, run_by_hand, remove_the_oldest, remove_a_plain_one,
        remove_the_newest, remove_all_but_the_oldest, fire_when_a_plain_one_is_removed,
        commit_one_from_before,
    ],
)  # fmt: skip
def test_what_changes_is_told_anew(
    client: FlaskClient, connection: Connection, told_whole: list[int], mine: Told,
    change: Callable[[Connection, Told], None],
) -> None:  # fmt: skip
    before = marks(client)
    change(connection, mine)
    shown, found = marks(client), [names(client, word) for word in WORDS]
    assert told_whole and (shown != before or change is run_it_again_for_now_in_vain)
    client.application.extensions.pop("wakeboard_known_schedules")
    fresh = marks(client), [names(client, word) for word in WORDS]
    assert (shown, found) == fresh, "as one that knows nothing shows it"
