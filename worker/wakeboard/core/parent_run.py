"""Whose work this is: what a handler enqueues is written down as made by its run. No database."""

from __future__ import annotations

from contextvars import ContextVar

_run: ContextVar[int | None] = ContextVar("wakeboard_run", default=None)


class inside:  # noqa: N801 - used as a verb, as ``contextlib`` does; as a class it costs a third
    """Say that the block runs the handler of run ``run_id``; threads that it starts do not inherit it."""

    __slots__ = ("_run_id", "_token")

    def __init__(self, run_id: int) -> None:
        self._run_id = run_id

    def __enter__(self) -> None:
        self._token = _run.set(self._run_id)

    def __exit__(self, *_error: object) -> None:
        _run.reset(self._token)


def maker(run_id: int) -> str:
    """Return what stands in ``enqueued_by`` of the runs that run ``run_id`` enqueued."""
    return f"run:{run_id}"


def made_by(enqueued_by: str | None) -> tuple[str | None, int | None]:
    """Return (enqueued_by, origin_run_id) of a run that is enqueued here and now.

    A handler that names somebody else is believed, and leaves no link: a run with a link and another maker
    was made by a person, who ran the origin again.
    """
    run_id = _run.get()
    if run_id is None or enqueued_by is not None:
        return enqueued_by, None
    return maker(run_id), run_id
