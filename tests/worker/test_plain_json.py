"""Values that JSON has no form for: what results store of them, and how payloads of them are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from tests.conftest import Connection
from wakeboard import Context, EnqueueError, PlainEncoder, Pool, enqueue, enqueue_many, job, run_now
from wakeboard.core.outcome import result_of_return
from wakeboard.core.run_spec import NewRun
from wakeboard.handlers.registry import JobType

NUMBER = UUID("2f1c7d0a-5b1e-4c3d-9e8f-0123456789ab")


class Colour(Enum):
    RED = "red"
    CHEAP = Decimal("1.50")


class Size(IntEnum):
    LARGE = 3


@dataclass
class Line:
    price: Decimal
    colour: Colour
    parts: tuple[date, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    id: UUID
    lines: list[Line]


class Point(NamedTuple):
    x: int
    at: time


PLAIN: list[tuple[object, object]] = [
    (datetime(2026, 3, 29, 1, 30, tzinfo=UTC), "2026-03-29T01:30:00+00:00"),
    (datetime(2026, 7, 1, 8, tzinfo=ZoneInfo("Europe/Berlin")), "2026-07-01T08:00:00+02:00"),
    (datetime(2026, 7, 1, 8, 0, 0, 5), "2026-07-01T08:00:00.000005"),
    (date(2026, 7, 1), "2026-07-01"),
    (time(8, 30), "08:30:00"),
    (timedelta(minutes=1, milliseconds=500), 60.5),
    (Decimal("19.90"), "19.90"),
    (NUMBER, str(NUMBER)),
    (Colour.RED, "red"),
    (Colour.CHEAP, "1.50"),
    (Size.LARGE, 3),
    ({3, 1, 2}, [1, 2, 3]),
    (frozenset({"b", "a"}), ["a", "b"]),
    ((1, date(2026, 7, 1)), [1, "2026-07-01"]),
    (Point(1, time(9)), [1, "09:00:00"]),
    (
        Order(NUMBER, [Line(Decimal("1.00"), Colour.RED, (date(2026, 7, 1),))]),
        {"id": str(NUMBER), "lines": [{"price": "1.00", "colour": "red", "parts": ["2026-07-01"]}]},
    ),
    ({"total": Decimal("0.1"), "since": date(2026, 1, 1)}, {"total": "0.1", "since": "2026-01-01"}),
]


@pytest.mark.parametrize(("value", "stored"), PLAIN)
def test_a_result_is_stored_in_its_plain_form(value: object, stored: object) -> None:
    answer = result_of_return(value)
    assert answer.note is None
    assert json.loads(str(answer.result)) == stored


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"sales": [1, {"by": object()}]}, "result.sales[1].by is an object"),
        (Order(NUMBER, [b"x"]), "result.lines[0] is a bytes"),  # type: ignore[list-item]
        ({"a b": {1, object()}}, "result['a b']["),
        ({"ratio": float("nan")}, "result.ratio is nan"),
        ({date(2026, 1, 1): 1}, "result has a key that is a date, and the keys of an object are text"),
        (Order, "result is a type"),
    ],
)
def test_a_result_that_is_not_kept_says_which_part_is_to_blame(value: object, where: str) -> None:
    answer = result_of_return(value)
    assert answer.result is None
    assert where in str(answer.note)


def test_a_value_without_end_is_looked_at_within_bounds() -> None:
    inside: list[object] = []
    inside += [inside, inside]
    assert "Circular" in str(result_of_return({"x": inside}).note)


@pytest.fixture
def keeps(request: pytest.FixtureRequest) -> Callable[[object], Any]:
    """Return what a second call of once() gives, outside of the database worker."""

    def handler(context: Context) -> object:
        first = context.once("effect", lambda: request.node.value)
        assert first == context.once("effect", lambda: "never called")
        return first

    def kept(value: object) -> Any:
        request.node.value = value
        return json.loads(str(run_now(job("plain_once")(handler)).result))

    return kept


def test_once_gives_the_plain_form_at_once_and_later(keeps: Callable[[object], Any]) -> None:
    assert keeps({"at": datetime(2026, 1, 1, tzinfo=UTC), "cents": Decimal("7")}) == {
        "at": "2026-01-01T00:00:00+00:00",
        "cents": "7",
    }


REFUSED: list[tuple[dict[Any, Any], str]] = [
    ({"customer": {"since": datetime(2026, 1, 1)}}, "payload.customer.since is a datetime"),
    ({"lines": [{"price": 1}, {"price": Decimal("1.1")}]}, "payload.lines[1].price is a Decimal"),
    ({"id": NUMBER}, "payload.id is a UUID"),
    ({"a-b": {"x y": {1}}}, "payload['a-b']['x y'] is a set"),
    ({"order": Order(NUMBER, [])}, "payload.order is an Order"),
    ({"n": float("inf")}, "payload.n is inf"),
    ({"by": {date(2026, 1, 1): 2}}, "payload.by has a key that is a date"),
]


@pytest.mark.parametrize(("payload", "sentence"), REFUSED)
def test_a_payload_is_refused_with_the_path_of_its_field(
    connection: Connection, payload: dict[Any, Any], sentence: str
) -> None:
    with pytest.raises(EnqueueError) as refused:
        enqueue(connection, "mail", payload)
    assert sentence in str(refused.value)
    assert "encoder=" in str(refused.value)
    with pytest.raises(EnqueueError) as refused:
        enqueue_many(connection, [{"job_type": "mail"}, {"job_type": "mail", "payload": payload}])
    assert str(refused.value).startswith("Run number 2: ") and sentence in str(refused.value)


class Cents(json.JSONEncoder):
    """Writes decimals as whole cents, and knows nothing else."""

    def default(self, o: Any) -> Any:
        return int(o * 100) if isinstance(o, Decimal) else super().default(o)


def test_an_encoder_writes_the_payload_before_its_size_is_checked(connection: Connection) -> None:
    run_id = enqueue(connection, "mail", {"price": Decimal("1.10")}, encoder=Cents)
    many = [{"job_type": "mail", "payload": {"at": date(2026, 1, n)}} for n in (1, 2)]
    ids = enqueue_many(connection, many, encoder=PlainEncoder)
    rows = connection.execute(
        "SELECT payload FROM wakeboard.job_runs WHERE id = ANY(%s) ORDER BY id", ([run_id, *ids],)
    ).fetchall()
    assert [row[0] for row in rows] == [{"price": 110}, {"at": "2026-01-01"}, {"at": "2026-01-02"}]
    with pytest.raises(EnqueueError, match=r"has 70,\d\d\d bytes; allowed: 65,536"):
        enqueue(connection, "mail", {"x": _Long()}, encoder=_Widening)


class _Long:
    pass


class _Widening(json.JSONEncoder):
    def default(self, o: Any) -> Any:
        return "x" * 70_000


def test_what_the_encoder_does_not_know_is_named_too() -> None:
    with pytest.raises(EnqueueError, match=r"not JSON for Cents: payload\.at is a date"):
        NewRun("mail", {"n": Decimal(1), "at": date(2026, 1, 1)}).columns(1000, Cents)
    with pytest.raises(EnqueueError, match="give a class derived from"):
        NewRun("mail", {}).columns(1000, str)  # type: ignore[arg-type]


def test_pool_and_inline_runs_take_an_encoder_and_keep_plain_results() -> None:
    def double(context: Context) -> Decimal:
        return Decimal(context.payload["price"]) * 2

    job_type = JobType("double", double)
    with Pool(concurrency=1) as pool:
        future = pool.submit(job_type, {"price": Decimal("1.10")}, encoder=PlainEncoder)
        assert future.result(timeout=20) == "2.20"
        with pytest.raises(EnqueueError, match=r"payload\.price is a Decimal"):
            pool.submit(job_type, {"price": Decimal("1.10")})
    answer = run_now(job("plain_double")(double), {"price": Decimal("1.10")}, encoder=PlainEncoder)
    assert answer.result == '"2.20"'
