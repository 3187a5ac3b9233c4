"""Enqueue many: inside the caller's own transaction, by COPY where possible. It imports no SQLAlchemy.

Keys are those of ``wakeboard.queue.enqueue``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from psycopg.errors import UniqueViolation
from psycopg.rows import tuple_row

from wakeboard.core.run_spec import Encoder, EnqueueError, NewRun, RunColumns, check_names, payload_limit
from wakeboard.database.caller_connection import array, executor, is_psycopg, unwrap
from wakeboard.queue.bulk_copy import copy, may_copy, reserve
from wakeboard.queue.enqueue import (
    FIELD_TYPES,
    INSERT_INTO,
    MOST_TRIES,
    PARAMETERS,
    check_key_type,
    insert_values,
)
from wakeboard.queue.handler_connection import own_connection

CHUNK = 1000
ColumnsOf = Callable[[NewRun], RunColumns]
# The id and the key of a run.
InsertedRun = tuple[int, str | None]
_Run = TypeVar("_Run", NewRun, RunColumns)
_Given = TypeVar("_Given")
_Result = TypeVar("_Result")

_ARRAYS = ", ".join(f"%s::{sql_type}[]" for sql_type in FIELD_TYPES.values()).replace("jsonb", "text")
_GIVEN = {name: f"given.{name}" for name in FIELD_TYPES} | {"payload": "given.payload::jsonb"}
INSERT_MANY = f"""
{INSERT_INTO}
SELECT {insert_values(_GIVEN)}
FROM unnest({_ARRAYS}) WITH ORDINALITY AS given ({", ".join(FIELD_TYPES)}, place)"""
# Runs that differ in their payloads and keys alone: all other values are sent once.
_OWN = ("payload", "key")
INSERT_ALIKE = f"""
{INSERT_INTO}
SELECT {insert_values(PARAMETERS | {name: _GIVEN[name] for name in _OWN})}
FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS given (payload, key, place)"""
# In the order of the arrays, which is that of the keys.
_IN_ORDER, _RETURNING = "\nORDER BY place", "\nRETURNING id, idempotency_key"
INSERT_ALL = _IN_ORDER + _RETURNING
INSERT_UNKNOWN = (
    f"{_IN_ORDER}\nON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING{_RETURNING}"
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
    entries = _convert_each(_iterate(runs), _read_entry)
    columns_of = partial(NewRun.columns, limit=payload_limit(), encoder=encoder)
    if target is None:
        # Opened when all entries are there: no transaction waits for the iterator that makes them.
        with own_connection() as connection, connection.transaction():
            return _insert_runs(connection, entries, columns_of)
    return _insert_runs(target, entries, columns_of)


def _iterate(runs: Iterable[object]) -> Iterator[object]:
    try:
        return iter(runs)
    except TypeError as wrong:
        raise EnqueueError(
            f"{runs!r:.100} is no list of runs; give one (or an iterator) of mappings such as "
            "{'job_type': 'mail', 'payload': {'to': 7}}."
        ) from wrong


def _read_entry(entry: Any) -> NewRun:
    """Return the run that ``entry`` is, or that it describes as a mapping. Raises EnqueueError."""
    run = entry if isinstance(entry, NewRun) else _from_mapping(entry)
    key = run.key
    if type(key) is str or not isinstance(key, str):
        return run
    # A member of an enumeration is not found by its text.
    return run._replace(key=str.__str__(key))


def _from_mapping(fields: Any) -> NewRun:
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


def _convert_each(entries: Iterable[_Given], convert: Callable[[_Given], _Result]) -> list[_Result]:
    """Return ``convert`` of each entry. Raises EnqueueError with the place of the first wrong one."""
    results: list[_Result] = []
    try:
        for entry in entries:
            results.append(convert(entry))
    except EnqueueError as wrong:
        raise EnqueueError(f"Run number {len(results) + 1}: {wrong}") from wrong
    return results


def _insert_runs(target: Any, runs: Sequence[NewRun], columns_of: ColumnsOf) -> list[int]:
    """Insert ``runs``, return their ids in the order given; a key that exists gives the id of its run.

    ``columns_of`` checks a run and returns its columns, or raises EnqueueError.
    """
    # For few runs COPY takes six statements instead of two, and no transaction should have many savepoints.
    if len(runs) >= CHUNK and is_psycopg(target) and may_copy(target):
        return _copy_runs(target, runs, columns_of)
    rows = _convert_each(runs, columns_of)
    firsts, types = _first_of_each_key(rows)
    # A single run tells that its key is known by not being inserted. Of several none may be, if one is
    # refused.
    known = _find_known(target, types) if len(rows) > 1 else {}
    inserted = _insert_new(target, [row for row in firsts if row.key not in known], types)
    return _ids_in_order(rows, known, inserted)


def _copy_runs(target: Any, runs: Sequence[NewRun], columns_of: ColumnsOf) -> list[int]:
    """Insert ``runs`` as ``_insert_runs`` does, by COPY.

    To check runs takes a third as long as to insert them. So some are written while others are checked, in a
    savepoint that takes back what is written when one is wrong.
    """
    _convert_each(runs, check_names)
    firsts, types = _first_of_each_key(runs)
    known = _find_known(target, types)
    new = [run for run in firsts if run.key not in known]
    if len(new) < len(runs):
        # Those that are not inserted are checked all the same.
        _convert_each(runs, columns_of)
    try:
        inserted = _copy_new(target, new, types, columns_of) if new else []
    except EnqueueError:
        # Raises the same with the place of the run.
        _convert_each(runs, columns_of)
        raise
    return _ids_in_order(runs, known, inserted)


def _ids_in_order(
    runs: Sequence[NewRun] | Sequence[RunColumns], known: Mapping[str, int], inserted: Sequence[InsertedRun]
) -> list[int]:
    """Return the id of each run; ``known`` are those of keys that existed."""
    unkeyed = iter([run_id for run_id, key in inserted if key is None])
    by_key = {**known, **{key: run_id for run_id, key in inserted if key is not None}}
    return [next(unkeyed) if run.key is None else by_key[run.key] for run in runs]


def _find_known(target: Any, types: Mapping[str, str]) -> dict[str, int]:
    """Return the ids of the runs that have keys of ``types``, by key. Raises KeyTaken."""
    if not types:
        return {}
    chunks = ([array(keys)] for keys in _chunks(list(types)))
    rows = chain.from_iterable(_execute_each(target, BY_KEYS, chunks))
    return {key: check_key_type(run_id, job_type, types[key], key) for key, run_id, job_type in rows}


def _copy_new(
    target: Any, runs: Sequence[NewRun], types: Mapping[str, str], columns_of: ColumnsOf
) -> list[InsertedRun]:
    """Write ``runs``, whose keys nobody had a moment ago, as if there were no conflict; insert them if so.

    To reserve ids begins the transaction of a connection that is not in autocommit; so what is taken back is
    a savepoint. A connection in autocommit is given a transaction.
    """
    reserved = reserve(target, len(runs))
    with target.transaction():
        try:
            with target.transaction():
                if reserved is None:
                    return _insert(target, list(map(columns_of, runs)), INSERT_ALL)
                ids = copy(target, map(columns_of, runs), reserved)
                return [(run_id, run.key) for run_id, run in zip(ids, runs, strict=True)]
        except UniqueViolation:
            return _insert_new(target, list(map(columns_of, runs)), types)


def _insert_new(target: Any, rows: Sequence[RunColumns], types: Mapping[str, str]) -> list[InsertedRun]:
    """Insert ``rows``, and find those of them that somebody else inserts meanwhile. Raises EnqueueError.

    ``types`` are those of the keys. When somebody takes a key at this moment for another type, the caller's
    transaction has to take the others back.
    """
    if not rows:
        return []
    missing = {row.key for row in rows if row.key is not None}
    inserted = _insert(target, rows, INSERT_UNKNOWN if missing else INSERT_ALL)
    missing.difference_update(key for _, key in inserted if key is not None)
    for _ in range(MOST_TRIES):
        if not missing:
            break
        known = _find_known(target, {key: types[key] for key in missing})
        inserted += [(run_id, key) for key, run_id in known.items()]
        missing -= known.keys()
    if missing:
        raise EnqueueError(f"The key '{min(missing)}' is being enqueued by others; try once more.")
    return inserted


def _insert(target: Any, rows: Sequence[RunColumns], end: str) -> list[InsertedRun]:
    """Insert ``rows`` by statements that have this ``end``, and return what they return."""
    statement, values_of = _choose_statement(rows)
    return list(chain.from_iterable(_execute_each(target, statement + end, map(values_of, _chunks(rows)))))


def _chunks(rows: Sequence[_Given]) -> Iterable[Sequence[_Given]]:
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))


def _first_of_each_key(runs: Sequence[_Run]) -> tuple[list[_Run], dict[str, str]]:
    """Return the runs to insert, of those with the same key the first, and the type of each key.

    They are in the order of their keys, so that two callers with the same keys never wait for each other.
    """
    keyed: dict[str, _Run] = {}
    for run in runs:
        if run.key is not None and (first := keyed.setdefault(run.key, run)).job_type != run.job_type:
            raise EnqueueError(
                f"The key '{run.key}' is given to type '{first.job_type}' and to '{run.job_type}'."
            )
    unkeyed = [run for run in runs if run.key is None]
    return unkeyed + [keyed[key] for key in sorted(keyed)], {key: run.job_type for key, run in keyed.items()}


def _choose_statement(
    rows: Sequence[RunColumns],
) -> tuple[str, Callable[[Sequence[RunColumns]], Sequence[object]]]:
    """Return the statement that inserts any of ``rows``, and the function that makes its values of some."""
    shared = [
        set(values)
        for name, values in zip(RunColumns._fields, zip(*rows, strict=True), strict=True)
        if name not in _OWN
    ]
    if any(len(values) > 1 for values in shared):
        return INSERT_MANY, lambda chunk: list(map(list, zip(*chunk, strict=True)))
    single = [values.pop() for values in shared]
    return INSERT_ALIKE, lambda chunk: [
        *single,
        array(row.payload for row in chunk),
        array(row.key for row in chunk),
    ]


def _execute_each(target: Any, statement: str, values: Iterable[Sequence[object]]) -> list[list[Any]]:
    """Execute ``statement`` with each of ``values``, and return the rows of each.

    On a connection of psycopg's the server works on one while the next is made and sent.
    """
    if not is_psycopg(target):
        execute = executor(target)
        return [execute(statement, each) for each in values]
    cursor = target.cursor(row_factory=tuple_row)
    cursor.executemany(statement, values, returning=True)
    rows = [cursor.fetchall()]
    while cursor.nextset():
        rows.append(cursor.fetchall())
    return rows
