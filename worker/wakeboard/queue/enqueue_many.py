"""Enqueue many: inside the caller's own transaction, by COPY where that can be. No import of SQLAlchemy.

Keys are those of ``wakeboard.queue.enqueue``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from psycopg.errors import UniqueViolation
from psycopg.rows import tuple_row

from wakeboard.core.run_spec import Encoder, EnqueueError, NewRun, check_names, payload_limit
from wakeboard.database.caller_connection import array, executor, is_psycopg, unwrap
from wakeboard.queue.bulk_copy import Row, copy, may_copy, reserve
from wakeboard.queue.enqueue import ROUNDS, same_type
from wakeboard.queue.handler_connection import own_connection

CHUNK = 1000
ColumnsOf = Callable[[Any], Row]
# The id and the key of a run.
Inserted = tuple[int, str | None]

INSERT_MANY = """
INSERT INTO wakeboard.job_runs
    (job_type, payload, run_at, idempotency_key, priority, max_attempts, enqueued_by, origin_run_id,
    traceparent)
SELECT job_type, payload::jsonb, coalesce(run_at, now()) + make_interval(secs => delay), key, priority,
    most, who, origin, trace
FROM unnest(%s::text[], %s::text[], %s::timestamptz[], %s::float8[], %s::text[], %s::smallint[], %s::int[],
    %s::text[], %s::bigint[], %s::text[]) WITH ORDINALITY
    AS row (job_type, payload, run_at, delay, key, priority, most, who, origin, trace, place)"""
# Runs that differ in their payloads and keys alone: everything else is said once.
INSERT_ALIKE = """
INSERT INTO wakeboard.job_runs
    (job_type, payload, run_at, idempotency_key, priority, max_attempts, enqueued_by, origin_run_id,
    traceparent)
SELECT %s::text, payload::jsonb, coalesce(%s::timestamptz, now()) + make_interval(secs => %s::float8), key,
    %s::smallint, %s::int, %s::text, %s::bigint, %s::text
FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS row (payload, key, place)"""
# In the order of the arrays, which is that of the keys.
_IN_ORDER, _GIVEN = "\nORDER BY place", "\nRETURNING id, idempotency_key"
ONE_EACH = _IN_ORDER + _GIVEN
UNLESS_KNOWN = (
    f"{_IN_ORDER}\nON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING{_GIVEN}"
)
BY_KEYS = """
SELECT idempotency_key, id, job_type FROM wakeboard.job_runs WHERE idempotency_key = ANY(%s::text[])"""


def enqueue_many(
    target: Any, runs: Iterable[NewRun | Mapping[str, Any]], *, encoder: Encoder | None = None
) -> list[int]:
    """Enqueue many runs, and return their ids in the order given.

    Each entry is a NewRun or a mapping of its fields. Keys and ``encoder`` behave as in ``enqueue``. Raises
    EnqueueError when an entry is wrong, naming its place; then nothing of them all is written.
    """
    target = unwrap(target)
    entries = _each(_gone_through(runs), _entry)
    columns_of = partial(NewRun.columns, limit=payload_limit(), encoder=encoder)
    if target is None:
        # Opened when all entries are there: no transaction waits for whoever makes them.
        with own_connection() as connection, connection.transaction():
            return _insert_all(connection, entries, columns_of)
    return _insert_all(target, entries, columns_of)


def _gone_through(runs: Iterable[Any]) -> Iterator[Any]:
    try:
        return iter(runs)
    except TypeError as wrong:
        raise EnqueueError(
            f"{runs!r:.100} is no list of runs; give one (or an iterator) of mappings such as "
            "{'job_type': 'mail', 'payload': {'to': 7}}."
        ) from wrong


def _entry(given: Any) -> NewRun:
    run = given if isinstance(given, NewRun) else _new(given)
    key = run.key
    if type(key) is str or not isinstance(key, str):
        return run
    # A member of an enumeration is not found by its text.
    return run._replace(key=str.__str__(key))


def _new(fields: Any) -> NewRun:
    """Return the run that a mapping describes. Raises EnqueueError with what is wrong of its fields."""
    try:
        return NewRun(**fields)
    except TypeError as wrong:
        if not isinstance(fields, Mapping):
            sentence = (
                f"{type(fields).__name__} is no run; give a mapping of what enqueue() takes, such as "
                "{'job_type': 'mail', 'payload': {'to': 7}, 'key': 'mail:7'}."
            )
        elif unknown := sorted(map(str, fields.keys() - set(NewRun._fields))):
            sentence = f"a run has no field {unknown[0]!r}; known: {', '.join(NewRun._fields)}."
        else:
            sentence = "it has no job_type."
        raise EnqueueError(sentence) from wrong


def _each(entries: Iterable[Any], make: Callable[[Any], Any]) -> list[Any]:
    """Return what ``make`` makes of each entry. Raises EnqueueError with the place of the first wrong one."""
    made: list[Any] = []
    try:
        for entry in entries:
            made.append(make(entry))
    except EnqueueError as wrong:
        raise EnqueueError(f"Run number {len(made) + 1}: {wrong}") from wrong
    return made


def _insert_all(target: Any, entries: Sequence[NewRun], columns_of: ColumnsOf) -> list[int]:
    """Insert ``entries``, return their ids in the order given; a key that exists gives the id of its run.

    ``columns_of`` makes an entry's columns, or raises EnqueueError. That takes a third as long as inserting:
    of many some are written while those of others are made, inside a savepoint that takes back what is
    written when one is wrong.
    """
    # For few it is two statements instead of six, and no transaction should have many savepoints.
    is_copied = len(entries) >= CHUNK and is_psycopg(target) and may_copy(target)
    rows: Sequence[Row] = entries
    if is_copied:
        _each(entries, check_names)
    else:
        rows = _each(entries, columns_of)
    firsts, types = _firsts(rows)
    # One by itself is found to be there when it is not inserted. Of several none may be, when one is refused.
    by_key = _known(target, types) if len(rows) > 1 else {}
    news = [row for row in firsts if row[4] not in by_key] if by_key else firsts
    if is_copied and len(news) < len(rows):
        _each(entries, columns_of)  # What is not inserted is checked all the same.
    try:
        if is_copied and news:
            inserted = _copy_new(target, news, types, columns_of)
        else:
            inserted = _insert_new(target, news, types)
    except EnqueueError:
        _each(entries, columns_of)  # Tells the place.
        raise
    unkeyed = iter([id_ for id_, key in inserted if key is None])
    by_key.update((key, id_) for id_, key in inserted if key is not None)
    return [next(unkeyed) if row[4] is None else by_key[row[4]] for row in rows]


def _known(target: Any, types: Mapping[str, str]) -> dict[str, int]:
    """Return the ids of the runs that have keys of ``types``, by key. Raises KeyTaken."""
    if not types:
        return {}
    answers = _run_each(target, BY_KEYS, ([array(some)] for some in _chunks(list(types))))
    found = chain.from_iterable(answers)
    return {key: same_type(id_, job_type, types[key], key) for key, id_, job_type in found}


def _copy_new(
    target: Any, rows: Sequence[Row], types: Mapping[str, str], columns_of: ColumnsOf
) -> list[Inserted]:
    """Write ``rows``, whose keys nobody had a moment ago, as if there were no conflict; insert them if so.

    Ids are taken before, which begins the transaction of a connection that begins them by itself: so what is
    taken back is a savepoint. One that commits each statement is given a transaction.
    """
    reserved = reserve(target, len(rows))
    with target.transaction():
        try:
            with target.transaction():
                if reserved is None:
                    return _insert(target, list(map(columns_of, rows)), ONE_EACH)
                ids = copy(target, map(columns_of, rows), reserved)
                return [(id_, row[4]) for id_, row in zip(ids, rows, strict=True)]
        except UniqueViolation:
            return _insert_new(target, list(map(columns_of, rows)), types)


def _insert_new(target: Any, rows: Sequence[Row], types: Mapping[str, str]) -> list[Inserted]:
    """Insert ``rows``, and find those of them that somebody else inserts meanwhile. Raises EnqueueError.

    ``types`` are those of the keys. When somebody takes a key at this moment for another type, it is left to
    the caller's transaction to take the others back.
    """
    if not rows:
        return []
    missing = {row[4] for row in rows if row[4] is not None}
    inserted = _insert(target, rows, UNLESS_KNOWN if missing else ONE_EACH)
    missing.difference_update(key for _, key in inserted)
    for _ in range(ROUNDS):
        if not missing:
            break
        found = _known(target, {key: types[key] for key in missing})
        inserted += [(id_, key) for key, id_ in found.items()]
        missing -= found.keys()
    if missing:
        raise EnqueueError(f"The key '{min(missing)}' is being enqueued by others; try once more.")
    return inserted


def _insert(target: Any, rows: Sequence[Row], end: str) -> list[Inserted]:
    """Insert ``rows`` by statements that have this ``end``, and return what they return."""
    statement, values_of = _many(rows)
    return list(chain.from_iterable(_run_each(target, statement + end, map(values_of, _chunks(rows)))))


def _chunks(rows: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))


def _firsts(rows: Sequence[Row]) -> tuple[list[Row], dict[str, str]]:
    """Return the rows to insert, of those with the same key the first, and the type of each key.

    They are in the order of their keys, so that two callers with the same keys never wait for each other.
    """
    keyed: dict[str, Row] = {}
    for row in rows:
        if row[4] is not None and (first := keyed.setdefault(row[4], row))[0] != row[0]:
            raise EnqueueError(f"The key '{row[4]}' is given to type '{first[0]}' and to '{row[0]}'.")
    unkeyed = [row for row in rows if row[4] is None]
    return unkeyed + [keyed[key] for key in sorted(keyed)], {key: row[0] for key, row in keyed.items()}


def _many(rows: Sequence[Row]) -> tuple[str, Callable[[Sequence[Row]], Sequence[Any]]]:
    """Return the statement that inserts any of ``rows``, and what makes its values of some of them."""
    alike = [set(column) for place, column in enumerate(zip(*rows, strict=True)) if place not in (1, 4)]
    if any(len(each) > 1 for each in alike):
        return INSERT_MANY, _columns
    said_once = [each.pop() for each in alike]
    return INSERT_ALIKE, lambda some: [
        *said_once,
        array(row[1] for row in some),
        array(row[4] for row in some),
    ]


def _columns(rows: Sequence[Row]) -> Sequence[Any]:
    return list(map(list, zip(*rows, strict=True)))


def _run_each(target: Any, statement: str, values: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Execute ``statement`` with each of ``values``, and return the rows of each.

    On a connection of psycopg's the server works on one while the next is made and sent.
    """
    if not is_psycopg(target):
        run = executor(target)
        return [run(statement, each) for each in values]
    cursor = target.cursor(row_factory=tuple_row)
    cursor.executemany(statement, values, returning=True)
    rows = [cursor.fetchall()]
    while cursor.nextset():
        rows.append(cursor.fetchall())
    return rows
