"""Hostile data: payloads, answers, exceptions, rows by plain SQL, keys used by many at once. Group F."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st

from dashboard import create_app
from tests.factories import rows
from tests.faults.apps.hostile import nested
from tests.faults.doors import Doors, as_stored, room
from tests.faults.house import House
from tests.faults.rows import Scale, fault
from worker.people import users
from worker.settings import Settings
from worker.states import Role

Measured = Callable[[str], None]
HOSTILE = "tests.faults.apps.hostile"
# An idle worker looks for work as often as this by default.
POLL_SECONDS = 2.0
MEGABYTES = 2**20

texts = st.text(st.characters(exclude_categories=()), max_size=30)
numbers = st.floats() | st.integers() | st.integers(0, 10_000).map(lambda digits: 10**digits)
values = st.recursive(
    st.none() | st.booleans() | texts | numbers,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
depths = st.integers(1, 600) | st.integers(1, 5_000)
# Most are around the limit of a payload; each copy of the largest costs the machine a while.
sizes = st.integers(65_000, 66_000) | st.sampled_from([0, 2**20 - 12, 2**20, 9 * MEGABYTES, 20 * MEGABYTES])
payloads = st.one_of(
    *[st.dictionaries(texts, values, max_size=5)] * 12,
    *[depths.map(lambda depth: {"deep": nested(depth)})] * 2,
    st.lists(st.floats(), max_size=50).map(lambda found: {"floats": found * 100}),
    sizes.map(lambda size: {"large": "x" * size}),
)


@pytest.fixture
def doors(house: House, database: str) -> Iterator[Doors]:
    """Every door to the house's database; a worker is there, and its first run has ended."""
    house.worker(APP=HOSTILE)
    first = house.enqueue("echo", {"first": True})
    house.settle(30)
    app = create_app(Settings.load({"database_url": database}, environ={}))
    client = app.test_client()
    client.environ_base["HTTP_SEC_FETCH_SITE"] = "same-origin"
    cookie = users.open_session(house.connection, "admin", Role.ADMIN)
    client.set_cookie(f"wakeboard_{users.install_id(house.connection)}", cookie)
    yield Doors(house.connection, database, client, first)
    # The row closes it before it looks for what is left; here after a failure.
    app.extensions["wakeboard_database"].dispose()


def drawn(count: int, seed: int, check: Callable[[st.DataObject], None]) -> None:
    """Call ``check`` with ``count`` draws that ``seed`` decides."""
    quiet = hypothesis.settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    quiet(hypothesis.seed(seed)(hypothesis.given(st.data())(check)))()


@fault(
    "F52",
    injected="payloads of any code points, NaN, 10^4 digits, 5,000 levels, 20 MB through five doors",
    expected="each is refused with a sentence, or arrives byte for byte",
)
def test_a_payload_arrives_whole_or_is_refused_in_a_sentence(
    house: House, doors: Doors, scale: Scale, seed: int, measured: Measured
) -> None:
    count = scale.times(200, 4_000)
    taken: dict[int, str] = {}
    refused: Counter[str] = Counter()

    def push(data: st.DataObject) -> None:
        door, payload = data.draw(st.sampled_from(doors.all)), data.draw(payloads)
        run_id = door(payload)
        if run_id is None:
            refused[door.__name__] += 1
            return
        taken[run_id] = door.__name__
        with room():
            house.acknowledge(run_id, as_stored(payload))

    drawn(count, seed, push)
    house.settle(120)
    died = not_succeeded(house)
    measured(
        f"{len(taken)} of {count} taken ({in_words(Counter(taken.values()))}), the rest refused with a "
        f"sentence ({in_words(refused)}); {len(died)} that Python cannot read came by SQL alone and are dead"
    )
    assert {taken[run_id] for run_id in died} <= {"insert"}
    assert set(died.values()) <= {"payload_unreadable"}
    assert set(Counter(taken.values())) == {door.__name__ for door in doors.all}
    assert_pages_stand(doors, [*died, *taken][: scale.times(20, 200)])
    doors.close()
    # What cannot be read has no start; every other run has one.
    started = {line.run_id for line in house.truth("start")}
    assert taken.keys() - started == died.keys()
    house.check(but_for=["I4"])


def not_succeeded(house: House) -> dict[int, str]:
    """Return the error codes of the runs that did not succeed, by id."""
    return dict(
        house.connection.execute(
            "SELECT id, error_code FROM wakeboard.job_runs WHERE status <> 'succeeded'"
        ).fetchall()
    )


def in_words(counts: Counter[str]) -> str:
    """Return ``form 12, insert 7``."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def assert_pages_stand(doors: Doors, run_ids: Sequence[int]) -> None:
    """Every page that shows these runs answers."""
    lists = ("/", "/runs", "/runs.json", "/runs.csv", "/errors", "/audit", "/audit.json")
    ways = (f"/runs/{run_id}{way}" for run_id in run_ids for way in ("", ".json", "/again"))
    for path in (*lists, *ways):
        assert doors.client.get(path).status_code == 200, path
