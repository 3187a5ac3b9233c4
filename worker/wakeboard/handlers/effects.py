"""Effects that happen once: ``once()``.

No transaction is open while the handler's function is called, unless the handler is inside its own
``transaction()``, which everything here joins. Outside of the database worker the effects are in memory.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from wakeboard.core.outcome import Retryable
from wakeboard.core.process.exits import is_success
from wakeboard.core.text.plain_json import explain_json_error, plain, result_text
from wakeboard.database.db import DatabaseError
from wakeboard.handlers.memory_effects import PROCESS_KEYS, MemoryEffect, MemoryEffectStore
from wakeboard.queue import effect_store
from wakeboard.queue.effect_store import Entry, Holder
from wakeboard.queue.handler_connection import close_thread_connection, current_transaction, own_connection

if TYPE_CHECKING:
    from wakeboard.handlers.context import Context

RESULT_BYTES = 8_192
_ROUNDS = 5
# How long "done" is tried for while the database is away: an effect that happened should be known to have.
_DONE_SECONDS = 30.0

_global_effects = MemoryEffectStore(PROCESS_KEYS)


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
    effect: TableEffect | MemoryEffect
    if context.worker_id:
        effect = TableEffect(context, scope, key)
    else:
        store = _global_effects if scope == "global" else context.effect_store
        effect = MemoryEffect(store, scope, key, context.run_id, context.attempt)
    for _ in range(_ROUNDS):
        if effect.start():
            return _perform(effect, key, function)
        entry = effect.find()
        if entry is not None and entry.is_done:
            return entry.result
        effect.check_lease()
        if entry is None:
            continue
        if entry.is_live:
            raise Retryable("effect_in_progress", f"The effect '{key}' is being made by run {entry.run_id}.")
        if if_unconfirmed == "skip":
            context.log.warning(
                "The effect '%s' was started by attempt %s of run %s and never confirmed. It is not made "
                "again%s.", key, entry.attempt, entry.run_id,
                "; an operator decides under Effects" if context.worker_id else "",
            )  # fmt: skip
            return None
        if not effect.take_over():
            continue
        if callable(if_unconfirmed):
            unconfirmed = UnconfirmedEffect(key, effect.scope, entry.run_id, entry.attempt, entry.started_at)
            try:
                result = if_unconfirmed(unconfirmed)
            except BaseException:
                effect.release()
                raise
            if result is not None:
                return _record(effect, key, result)
        return _perform(effect, key, function)
    raise Retryable("effect_in_progress", f"The effect '{key}' is being made by others again and again.")


def _check(key: object, scope: object, if_unconfirmed: object) -> None:
    if not isinstance(key, str) or not 1 <= len(key) <= 200 or not key.isprintable():
        raise ValueError(f"once() needs a key of 1 to 200 printable characters, not {key!r:.60}.")
    if scope not in ("run", "global"):
        raise ValueError(f"once() knows scope='run' and scope='global', not {scope!r}.")
    if if_unconfirmed not in ("skip", "redo") and not callable(if_unconfirmed):
        raise ValueError(f"if_unconfirmed is 'skip', 'redo' or a callable, not {if_unconfirmed!r}.")


def _perform(effect: TableEffect | MemoryEffect, key: str, function: Callable[[], Any]) -> Any:
    try:
        value = function()
        if isawaitable(value):
            with contextlib.suppress(AttributeError):
                value.close()  # type: ignore[attr-defined]
            raise TypeError(
                "once() calls an ordinary function; this one is async. Await inside asyncio.run()."
            )
    except MemoryError:
        # How ``memory_mb`` ends a run that asks for too much: not the provider's answer, so nobody knows.
        effect.release()
        raise
    except BaseException as error:
        if is_success(error):
            # The function left as a command does that went well. The run ends there, and is one too.
            _record(effect, key, None)
        elif isinstance(error, Exception):
            effect.remove(error)
        else:
            effect.release()
        raise
    return _record(effect, key, value)


def _record(effect: TableEffect | MemoryEffect, key: str, value: Any) -> Any:
    try:
        text = _result_text(value, key)
    except TypeError:
        effect.finish(None)
        raise
    effect.finish(text)
    return json.loads(text)


def _result_text(value: Any, key: str) -> str:
    beginning = f"The effect '{key}' happened and is kept as done, but its result is not: it "
    try:
        text = result_text(value)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as failure:
        why = explain_json_error(value, "result", str(failure), plain)
        raise TypeError(
            f"{beginning}is not JSON ({why}). Return something plain, as the provider's id."
        ) from failure
    if size > RESULT_BYTES or "\\u0000" in text:
        problem = (
            f"has {size:,} bytes, allowed are {RESULT_BYTES:,}" if size > RESULT_BYTES else "holds a NUL"
        )
        raise TypeError(f"{beginning}{problem}. Return something short, as the provider's id.")
    return text


class TableEffect:
    """The effect ``key`` of the table ``effects``, as one attempt sees it."""

    def __init__(self, context: Context, scope: str, key: str) -> None:
        self._context = context
        self._holder = Holder(context.run_id, context.attempt, context.lease_epoch, context.worker_id)
        self.scope = f"run:{context.run_id}" if scope == "run" else "global"
        self._key = key
        self._id = 0
        self._entry: Entry | None = None

    def start(self) -> bool:
        """Write ``started``; False when the key is known or the lease is lost."""
        try:
            with own_connection() as connection:
                entry_id = effect_store.start(connection, self._holder, self.scope, self._key)
        except psycopg.errors.LockNotAvailable as timeout:
            message = (
                f"The effect '{self._key}' is being made in another run's transaction, which has not ended."
            )
            raise Retryable("effect_in_progress", message) from timeout
        self._id = entry_id or 0
        return entry_id is not None

    def find(self) -> Entry | None:
        """Return the row, None when there is none."""
        with own_connection() as connection:
            self._entry = effect_store.find(connection, self.scope, self._key)
        return self._entry

    def check_lease(self) -> None:
        """Raise LeaseLost or RuntimeError unless the attempt still owns its run."""
        if self._context.committed:
            raise RuntimeError(
                "transaction() has finished this run already; call once() before the block or inside it."
            )
        with own_connection() as connection:
            if not effect_store.is_holder(connection, self._holder):
                raise LeaseLost(
                    f"Run {self._holder.run_id} belongs to a later attempt; this one may write nothing."
                )

    def take_over(self) -> bool:
        """Make the row that ``find`` returned this attempt's; False when another attempt was faster."""
        assert self._entry is not None
        self._id = self._entry.id
        with own_connection() as connection:
            return effect_store.take_over(connection, self._holder, self._entry)

    def finish(self, result_text: str | None) -> None:
        """Write ``done``; while the database is away try again, within bounds and the run's deadline.

        Raises LeaseLost when a later attempt has the row by now.
        """
        until = time.monotonic() + max(0.0, min(_DONE_SECONDS, self._context.seconds_left - 1))
        pause = 0.1
        while True:
            try:
                with own_connection() as connection:
                    is_written = effect_store.finish(connection, self._holder, self._id, result_text)
                break
            except (psycopg.OperationalError, DatabaseError):
                if current_transaction() is not None or time.monotonic() + pause > until:
                    raise
                close_thread_connection()
                time.sleep(pause)
                pause = min(2 * pause, 2.0)
        if is_written:
            return
        entry = self.find()
        # An operator may have written ``done`` meanwhile.
        if entry is None or entry.id != self._id or not entry.is_done:
            raise LeaseLost(
                f"The effect '{self._key}' was made by attempt {self._holder.attempt} of run "
                f"{self._holder.run_id}, which had lost its lease meanwhile: look whether a later attempt "
                "made it too."
            )

    def remove(self, error: Exception) -> None:
        """Remove ``started``. When that fails the effect stays unconfirmed, and ``error`` gets a note."""
        try:
            with own_connection() as connection:
                # After a failed statement a joined transaction can only roll back, which removes the row too.
                if connection.info.transaction_status != TransactionStatus.INERROR:
                    effect_store.remove(connection, self._holder, self._id)
        except (psycopg.Error, DatabaseError) as failure:
            error.add_note(f"The effect stays unconfirmed, because its row could not be removed: {failure}")

    def release(self) -> None:
        """The row stays ``started``: it is unconfirmed once the attempt has ended."""
