"""Hostile data: payloads, answers, exceptions, rows by plain SQL, keys used by many at once. Group F."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import hypothesis
import psycopg
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st

from tests.support.factories import rows
from tests.support.faults.apps.enqueuers import DIED
from tests.support.faults.deployment import House
from tests.support.faults.enqueue_ways import Doors, as_stored, room
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.hostile_values import FAILURES, hostile_value, nested
from tests.support.faults.truth_file import now
from tests.support.processes import ROOT, surroundings
from wakeboard import enqueue
from wakeboard.accounts import sessions, users
from wakeboard.config.settings import Settings
from wakeboard.core.states import Role
from wakeboard_dashboard import create_app

Measured = Callable[[str], None]
HOSTILE = "tests.support.faults.apps.hostile"
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
    cookie = sessions.open_session(house.connection, "admin", Role.ADMIN)
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
    count = scale.times(150, 3_000)
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
    # Near Python's depth the payload can still be read, and the handler's own walk through it fails.
    assert set(died.values()) <= {"payload_unreadable", "RecursionError"}
    assert set(Counter(taken.values())) == {door.__name__ for door in doors.all}
    shown = scale.times(5, 30)
    assert_pages_stand(doors, [*[*died][:shown], *[*taken][-shown:]])
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


@fault(
    "F52",
    injected="results, output and progress of any code points, NaN, 10^4 digits, 5,000 levels, 20 MB, lies",
    expected="every run succeeds; its result is kept byte for byte, or a note says why not",
)
def test_an_answer_is_kept_whole_or_noted(
    house: House, scale: Scale, chance: Random, measured: Measured
) -> None:
    house.worker(APP=HOSTILE)
    seeds = [chance.randrange(2**40) for _ in range(scale.times(60, 1_000))]
    runs = {house.enqueue("babble", {"seed": seed}): seed for seed in seeds}
    house.settle(120)
    found = house.connection.execute(
        "SELECT run_id, outcome, result::text, note, octet_length(output_tail) FROM wakeboard.job_attempts"
    ).fetchall()
    kept = {run_id: text for run_id, _, text, _, _ in found if text is not None}
    measured(
        f"{len(found)} runs succeeded; {len(kept)} results kept, {len(found) - len(kept)} noted as not kept"
    )
    assert house.outcomes() == {"succeeded": len(seeds)}
    assert len(found) == len(seeds)
    assert max(size or 0 for *_, size in found) <= 4 * 8_192
    assert all((text is None) == bool(note and "not kept" in note) for _, _, text, note, _ in found)
    with room():
        for run_id, text in kept.items():
            assert json.loads(text) == as_stored(hostile_value(runs[run_id])), runs[run_id]
    house.check()


@fault(
    "F54",
    injected="exceptions that lie, flood, recurse, chain 5,000 causes, or are none",
    expected="each attempt recorded under a code, text and trace bounded and clean, no neighbour hurt",
)
def test_a_hostile_exception_is_recorded(house: House, scale: Scale, measured: Measured) -> None:
    house.worker(APP=HOSTILE)
    ways = {house.enqueue("fall", {"way": way}): way for way in FAILURES for _ in range(scale.times(1, 20))}
    neighbours = house.enqueue_many("echo", len(ways))
    house.settle(120)
    found = {one["run_id"]: one for one in rows(house.connection, "job_attempts", "outcome = 'failed'")}
    texts, traces = ([one[name] or "" for one in found.values()] for name in ("error", "traceback"))
    measured(
        f"{len(found)} of {len(ways)} recorded ({len(FAILURES)} ways); longest text {longest(texts):,} B, "
        f"longest trace {longest(traces):,} B; {len(neighbours)} neighbours succeeded"
    )
    assert found.keys() == ways.keys()
    for run_id, way in ways.items():
        assert (found[run_id]["error_code"] or "").startswith(FAILURES[way][1]), (way, found[run_id])
    assert longest(texts) <= 8_192
    assert longest(traces) <= 32_768
    assert house.counts(neighbours) == {"succeeded": len(neighbours)}
    assert not house.counts().get("running")
    house.check()


def longest(texts: Sequence[str]) -> int:
    """Return the length of the longest text in bytes."""
    return max(len(text.encode()) for text in texts)


# JSON that PostgreSQL takes and Python does not.
UNREADABLE = (
    f'{{"deep": {"[" * 2_000}{"]" * 2_000}}}',
    '{"a":' * 2_000 + "1" + "}" * 2_000,
    f'{{"number": {"9" * 5_000}}}',
    '{"n": 1, "number": 1e5000}',
)
# Rows that are odd, and have to be run like any other.
ODD_ROWS: tuple[dict[str, Any], ...] = (
    {"run_at": "0001-01-02 00:00:00+00", "created_at": "0001-01-02 00:00:00+00"},
    {"timeout_seconds": 1e300, "max_attempts": 2**31 - 1, "priority": 4},
    {"idempotency_key": "\U0010ffff" * 200, "enqueued_by": "\u202e" * 200},
    {
        "traceparent": '"\\{}' * 50,
        "failures": 499_999_999,
        "attempts": 499_999_999,
        "max_attempts": 2**31 - 1,
    },
    {"scheduled_for": "9999-12-29 23:59:59+00", "definition_id": 2**63 - 1},
    {"lease_epoch": -(2**63), "payload": json.dumps({"large": [0] * 300_000})},
)
# Rows that PostgreSQL or its driver turns down, each with the reason.
REFUSED_ROWS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"payload": '{"text": "\\u0000"}'}, "22P05"),
    ({"payload": '{"text": "\\ud800"}'}, "22P02"),
    ({"payload": '{"n": NaN}'}, "22P02"),
    ({"payload": '{"n": -Infinity}'}, "22P02"),
    ({"payload": "[" * 100_000}, "54001"),
    ({"payload": json.dumps({"large": "x" * 2**20})}, "23514"),
    ({"idempotency_key": "a\x00b"}, "DataError"),
    ({"idempotency_key": "\udc80"}, "UnicodeEncodeError"),
    ({"idempotency_key": secrets.token_hex(3_000)}, "23514"),
    ({"run_at": "infinity"}, "23514"),
    ({"timeout_seconds": "NaN"}, "23514"),
    ({"attempts": 500_000_000}, "23514"),
    ({"lease_epoch": 2**63 - 1}, "23514"),
    ({"traceparent": "x" * 10**6}, "23514"),
)


def insert_row(house: House, columns: dict[str, Any]) -> int:
    """Insert one run of the type ``echo`` with these columns; return its id."""
    names = ["job_type", *columns]
    statement = (
        f"INSERT INTO wakeboard.job_runs ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})"
    )
    found = house.connection.execute(f"{statement} RETURNING id".encode(), ["echo", *columns.values()])
    (run_id,) = found.fetchone() or (0,)
    return int(run_id)


def refusal(house: House, columns: dict[str, Any]) -> str:
    """Insert a row that must be turned down; return the SQLSTATE, or the driver's own reason."""
    try:
        run_id = insert_row(house, columns)
    except psycopg.Error as refused:
        return refused.sqlstate or type(refused).__name__
    except UnicodeEncodeError as refused:
        return type(refused).__name__
    return f"was taken as run {run_id}"


def insert_batch(house: House, payloads: Sequence[str]) -> list[int]:
    """Insert one run of the type ``echo`` for each JSON text, in one statement; return their ids."""
    found = house.connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, payload) SELECT 'echo', p::jsonb"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS given (p, n) ORDER BY n RETURNING id",
        (list(payloads),),
    )
    return [run_id for (run_id,) in found.fetchall()]


def longest_pause(house: House, run_ids: Sequence[int]) -> float:
    """Return the longest time between two starts among these runs, in seconds."""
    wanted = set(run_ids)
    starts = sorted(line.at for line in house.truth("start") if line.run_id in wanted)
    return max(after - before for before, after in pairwise(starts))


@fault(
    "F53",
    injected="rows by SQL: 5 % of a batch that Python cannot read, odd ones, and the poison list",
    expected="the unreadable die under a code, the rest succeed, none waits longer than one poll for them",
)
def test_poisoned_rows_fail_alone(house: House, scale: Scale, measured: Measured) -> None:
    worker = house.worker(APP=HOSTILE, POLL_SECONDS=POLL_SECONDS)
    reasons = {str(columns)[:60]: (refusal(house, columns), reason) for columns, reason in REFUSED_ROWS}
    assert all(found == reason for found, reason in reasons.values()), reasons
    count = scale.times(200, 1_000)
    clean = insert_batch(house, ["{}"] * count)
    house.settle(60)
    # A clean batch by the same worker tells what a pause is on this machine now.
    payloads = [UNREADABLE[n // 20 % 4] if n % 20 == 10 else "{}" for n in range(count - len(ODD_ROWS))]
    odd = [insert_row(house, columns) for columns in ODD_ROWS]
    poisoned = insert_batch(house, payloads)
    house.settle(60)
    died = not_succeeded(house)
    good = [run_id for run_id in poisoned if run_id not in died]
    pause, usual = longest_pause(house, good), longest_pause(house, clean)
    measured(
        f"{len(good) + len(odd)} of {count} succeeded, {len(died)} dead with payload_unreadable; the longest "
        f"pause between two starts {pause * 1000:.0f} ms ({usual * 1000:.0f} ms in a clean batch, a poll is "
        f"{POLL_SECONDS * 1000:.0f}); {len(REFUSED_ROWS)} of {len(REFUSED_ROWS)} kinds of poison refused"
    )
    assert died == dict.fromkeys(
        (run_id for run_id, text in zip(poisoned, payloads, strict=True) if text in UNREADABLE),
        "payload_unreadable",
    )
    assert house.counts(odd) == {"succeeded": len(odd)}
    assert pause <= usual + POLL_SECONDS
    assert worker.process.poll() is None
    house.check(but_for=["I4"])


@fault(
    "F55",
    injected="2 programs of 100 threads enqueue the same keys at once; one dies before or after its commit",
    expected="one run for each key, the same id for everybody, nobody blocked",
)
def test_a_key_gives_one_run_whoever_dies(house: House, scale: Scale, measured: Measured) -> None:
    house.worker(APP=HOSTILE)
    threads, rounds = scale.times(12, 100), scale.times(1, 2)
    told: dict[str, set[int]] = {}
    slowest = 0.0
    for number, way in enumerate(("calm", "before", "after") * rounds):
        keys = [f"{way}-{number}-{place}" for place in range(5)]
        began = now()
        for key, run_id in race(house.database, ("calm", way), threads, keys):
            told.setdefault(key, set()).add(run_id)
        slowest = max(slowest, now() - began)
        for key in keys:
            told.setdefault(key, set()).add(enqueue(house.connection, "echo", {"key": key}, key=key))
    for key, ids in told.items():
        house.acknowledge(min(ids), {"key": key})
    house.settle(60)
    again = {key: enqueue(house.connection, "echo", {"key": key}, key=key) for key in told}
    count = sum(house.counts().values())
    measured(
        f"{len(told)} keys, {2 * threads} threads each: {count} runs, {sum(map(len, told.values()))} ids; "
        f"the slowest round {slowest:.1f} s; after their end the same keys gave the same runs"
    )
    assert {key: {run_id} for key, run_id in again.items()} == told
    assert count == len(told)
    assert house.counts() == {"succeeded": len(told)}
    house.check()


def race(database: str, ways: Sequence[str], threads: int, keys: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Run a program of enqueuing threads for each way at once; yield each key and id that they told."""
    command = [sys.executable, "-m", "tests.support.faults.apps.enqueuers", database]
    programs = [
        subprocess.Popen(
            [*command, way, str(threads), *keys],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=surroundings(None),
        )
        for way in ways
    ]  # fmt: skip
    for program, way in zip(programs, ways, strict=True):
        try:
            said, complained = program.communicate(timeout=60)
        finally:
            program.kill()
        assert program.returncode == (0 if way == "calm" else DIED), complained
        for line in said.splitlines():
            key, run_id = line.split()
            yield key, int(run_id)
