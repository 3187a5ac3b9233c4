"""Effects that happen once: ``once()``.

No transaction is open while the handler's function is called, unless the handler is inside its own
``transaction()``, which everything here joins. Outside of the database worker the ledger is memory.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal

import psycopg
from psycopg.pq import TransactionStatus

from wakeboard.core.outcome import Retryable
from wakeboard.core.process.exits import is_success
from wakeboard.core.text.plain_json import explain_json_error, plain, result_text
from wakeboard.database.db import DatabaseError
from wakeboard.handlers.memory_effect_store import PROCESS_KEYS, MemoryEffectStore
from wakeboard.queue import effect_store
from wakeboard.queue.effect_store import Entry, Holder
from wakeboard.queue.handler_connection import close_thread_connection, current_transaction, own_connection

if TYPE_CHECKING:
    from wakeboard.handlers.context import Context

RESULT_BYTES = 8_192
_ROUNDS = 5
# How long "done" is tried for while the database is away: an effect that happened should be known to have.
_DONE_SECONDS = 30.0

Scope = Literal["run", "global"]
_process = MemoryEffectStore(PROCESS_KEYS)


class LeaseLost(Exception):
    """This attempt does not own its run any more, so it may write nothing; another one goes on."""

    error_code = "lease_lost"


@dataclass(frozen=True, slots=True)
class UnconfirmedEffect:
    """An effect whose attempt died between start and done, as the callable of ``if_unconfirmed`` gets it.

    ``started_at`` is when, by the database's clock; ``run_id`` may be another run's with scope "global".
    """

    key: str
    scope: str
    run_id: int
    attempt: int
    started_at: datetime


def once(
    context: Context,
    key: str,
    function: Callable[[], Any],
    *,
    scope: str = "run",
    if_unconfirmed: str | Callable[[UnconfirmedEffect], Any] = "skip",
) -> Any:
    """Call ``function()`` unless the effect ``key`` is done, and return its JSON result, then and later: of a
    datetime its ISO text, see ``wakeboard.core.text.plain_json``.

    ``scope`` "run" remembers for this run and its retries, "global" for every run that uses the key.
    ``if_unconfirmed`` says what to do when an earlier attempt died half-way: "skip" returns None and leaves
    the row for an operator, "redo" calls again, a callable looks at the provider and returns the result, or
    None when it was not done. What ``function`` raises goes on; after an ordinary exception the effect
    counts as not done (MemoryError is none: it cuts a run short), after ``sys.exit(0)`` as done. Raises
    Retryable('effect_in_progress') while another attempt is at it, LeaseLost when this one lost its run,
    RuntimeError after the run's own ``transaction()`` has finished it, TypeError for a result that is not
    JSON of at most 8 kB (the effect is done then).
    """
    _check(key, scope, if_unconfirmed)
    if not context.worker_id:
        return _once_in_memory(context, key, function, scope, if_unconfirmed)
    holder = Holder(context.run_id, context.attempt, context.lease_epoch, context.worker_id)
    ledger_scope = f"run:{context.run_id}" if scope == "run" else "global"
    for _ in range(_ROUNDS):
        with own_connection() as connection:
            entry_id = _start(connection, holder, ledger_scope, key)
            entry = None if entry_id is not None else effect_store.find(connection, ledger_scope, key)
        if entry_id is not None:
            return _perform(context, holder, entry_id, key, function)
        if entry is not None and entry.is_done:
            return entry.result
        _must_hold(context, holder)
        if entry is not None and entry.is_live:
            raise Retryable("effect_in_progress", f"The effect '{key}' is being made by run {entry.run_id}.")
        if entry is not None and if_unconfirmed == "skip":
            return _skip(context, entry)
        if entry is not None and _take_over(holder, entry):
            return _settle(context, holder, entry, function, if_unconfirmed)
    raise Retryable("effect_in_progress", f"The effect '{key}' is being made by others again and again.")


def _start(connection: psycopg.Connection[Any], holder: Holder, scope: str, key: str) -> int | None:
    try:
        return effect_store.start(connection, holder, scope, key)
    except psycopg.errors.LockNotAvailable as waited:
        message = f"The effect '{key}' is being made in another run's transaction, which has not ended."
        raise Retryable("effect_in_progress", message) from waited


def _check(key: object, scope: object, if_unconfirmed: object) -> None:
    if not isinstance(key, str) or not 1 <= len(key) <= 200 or not key.isprintable():
        raise ValueError(f"once() needs a key of 1 to 200 printable characters, not {key!r:.60}.")
    if scope not in ("run", "global"):
        raise ValueError(f"once() knows scope='run' and scope='global', not {scope!r}.")
    if if_unconfirmed not in ("skip", "redo") and not callable(if_unconfirmed):
        raise ValueError(f"if_unconfirmed is 'skip', 'redo' or a callable, not {if_unconfirmed!r}.")


def _once_in_memory(
    context: Context,
    key: str,
    function: Callable[[], Any],
    scope: str,
    decision: str | Callable[[UnconfirmedEffect], Any],
) -> Any:
    """Remember for as long as the run (or, with scope "global", the process) lives."""
    memory = _process if scope == "global" else context.effect_store
    before = memory.take(key, context.run_id, context.attempt)
    if before is not None and before.state == "done":
        return before.result
    if before is not None and before.state == "making":
        raise Retryable("effect_in_progress", f"The effect '{key}' is being made by run {before.run_id}.")
    if before is not None and decision == "skip":
        memory.put(key, before)
        context.log.warning("The effect '%s' was cut short and never confirmed; it is not made again.", key)
        return None
    value = None
    if before is not None and callable(decision):
        with memory.as_it_was(key, before):
            value = decision(UnconfirmedEffect(key, scope, before.run_id, before.attempt, before.started_at))
    if value is None:
        with memory.making(key, context.run_id, context.attempt):
            value = _called(function)
    memory.done(key, context.run_id, context.attempt, None)
    result = json.loads(_result_text(value, key))
    memory.done(key, context.run_id, context.attempt, result)
    return result


def _must_hold(context: Context, holder: Holder) -> None:
    if context.committed:
        raise RuntimeError(
            "transaction() has finished this run already; call once() before the block or inside it."
        )
    with own_connection() as connection:
        if not effect_store.is_holder(connection, holder):
            raise LeaseLost(f"Run {holder.run_id} belongs to a later attempt; this one may write nothing.")


def _skip(context: Context, entry: Entry) -> None:
    context.log.warning(
        "The effect '%s' was started by attempt %s of run %s and never confirmed. It is not made again; "
        "an operator decides under Effects.",
        entry.key,
        entry.attempt,
        entry.run_id,
    )


def _take_over(holder: Holder, entry: Entry) -> bool:
    with own_connection() as connection:
        return effect_store.take_over(connection, holder, entry)


def _settle(
    context: Context,
    holder: Holder,
    entry: Entry,
    function: Callable[[], Any],
    decision: str | Callable[[UnconfirmedEffect], Any],
) -> Any:
    """Go on with an unconfirmed effect that is ours now. While nobody knows, the row stays ``started``."""
    if callable(decision):
        found = decision(
            UnconfirmedEffect(entry.key, entry.scope, entry.run_id, entry.attempt, entry.started_at)
        )
        if found is not None:
            return _record(context, holder, entry.id, entry.key, found)
    return _perform(context, holder, entry.id, entry.key, function)


def _perform(context: Context, holder: Holder, entry_id: int, key: str, function: Callable[[], Any]) -> Any:
    try:
        value = _called(function)
    except MemoryError:
        # How ``memory_mb`` ends a run that asks for too much: not the provider's answer, so nobody knows.
        raise
    except BaseException as error:
        if is_success(error):
            # The function left as a command does that went well. The run ends there, and is one too.
            _record(context, holder, entry_id, key, None)
        elif isinstance(error, Exception):
            _take_back(holder, entry_id, error)
        raise
    return _record(context, holder, entry_id, key, value)


def _called(function: Callable[[], Any]) -> Any:
    value = function()
    if isawaitable(value):
        with contextlib.suppress(AttributeError):
            value.close()  # type: ignore[attr-defined]
        raise TypeError("once() calls an ordinary function; this one is async. Await inside asyncio.run().")
    return value


def _take_back(holder: Holder, entry_id: int, error: Exception) -> None:
    """Remove ``started``. When that fails the effect stays unconfirmed, and the error says so."""
    try:
        with own_connection() as connection:
            # After a failed statement a joined transaction can only roll back, which removes the row too.
            if connection.info.transaction_status != TransactionStatus.INERROR:
                effect_store.remove(connection, holder, entry_id)
    except (psycopg.Error, DatabaseError) as failure:
        error.add_note(f"The effect stays unconfirmed, because its row could not be removed: {failure}")


def _record(context: Context, holder: Holder, entry_id: int, key: str, value: Any) -> Any:
    try:
        text = _result_text(value, key)
    except TypeError:
        _finish(context, holder, entry_id, key, None)
        raise
    _finish(context, holder, entry_id, key, text)
    return json.loads(text)


def _result_text(value: Any, key: str) -> str:
    advice = f"The effect '{key}' happened and is kept as done, but its result is not: it "
    try:
        text = result_text(value)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as wrong:
        why = explain_json_error(value, "result", str(wrong), plain)
        raise TypeError(
            f"{advice}is not JSON ({why}). Return something plain, as the provider's id."
        ) from wrong
    if size > RESULT_BYTES or "\\u0000" in text:
        what = f"has {size:,} bytes, allowed are {RESULT_BYTES:,}" if size > RESULT_BYTES else "holds a NUL"
        raise TypeError(f"{advice}{what}. Return something short, as the provider's id.")
    return text


def _finish(context: Context, holder: Holder, entry_id: int, key: str, text: str | None) -> None:
    """Write ``done``, again and again while the database is away, within bounds and the run's deadline."""
    until = time.monotonic() + max(0.0, min(_DONE_SECONDS, context.seconds_left - 1))
    pause = 0.1
    while True:
        try:
            with own_connection() as connection:
                written = effect_store.finish(connection, holder, entry_id, text)
            break
        except (psycopg.OperationalError, DatabaseError):
            if current_transaction() is not None or time.monotonic() + pause > until:
                raise
            close_thread_connection()
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
    if not written:
        _not_ours(holder, entry_id, key)


def _not_ours(holder: Holder, entry_id: int, key: str) -> None:
    """Say what became of a row that somebody else changed while the effect was made."""
    with own_connection() as connection:
        row = connection.execute("SELECT status FROM wakeboard.effects WHERE id = %s", (entry_id,)).fetchone()
    if row is None or row[0] != "done":
        raise LeaseLost(
            f"The effect '{key}' was made by attempt {holder.attempt} of run {holder.run_id}, which had lost "
            "its lease meanwhile: look whether a later attempt made it too."
        )
