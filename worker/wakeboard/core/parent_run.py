"""The run whose handler enqueues: what it enqueues is recorded as made by that run. No database."""

from __future__ import annotations

from contextvars import ContextVar

_run: ContextVar[int | None] = ContextVar("wakeboard_run", default=None)


class ParentRun:
    """A context in which the handler of run ``run_id`` runs; threads that it starts do not inherit it.

    A class, for ``contextlib.contextmanager`` costs three times as much.
    """

    __slots__ = ("_run_id", "_token")

    def __init__(self, run_id: int) -> None:
        self._run_id = run_id

    def __enter__(self) -> None:
        self._token = _run.set(self._run_id)

    def __exit__(self, *_error: object) -> None:
        _run.reset(self._token)


def enqueuer_name(run_id: int) -> str:
    """Return the ``enqueued_by`` of the runs that run ``run_id`` enqueues."""
    return f"run:{run_id}"


def find_enqueuer(enqueued_by: str | None) -> tuple[str | None, int | None]:
    """Return (enqueued_by, origin_run_id) of a run that is enqueued here and now.

    ``enqueued_by``: the name that the caller gives. It leaves no link to the parent run: a run with a link
    and another name was made by a person, who ran the origin again.
    """
    run_id = _run.get()
    if run_id is None or enqueued_by is not None:
        return enqueued_by, None
    return enqueuer_name(run_id), run_id
