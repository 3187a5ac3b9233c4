"""The operator's moves on saved views: a filter under a name for everybody. Each writes its audit row."""

from __future__ import annotations

from typing import NamedTuple

from psycopg import Connection

from wakeboard.core.answer import Answer
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.database.read import read_one
from wakeboard.queue.operator import Transition, act

PAGES = ("runs",)
LONGEST_NAME = 60
LONGEST_QUERY = 2000
# More than anybody finds anything in.
MOST = 100

BY_NAME = """
SELECT id, name, query, created_by FROM wakeboard.saved_views
WHERE page = %(page)s AND name = %(name)s FOR UPDATE
"""
BY_ID = "SELECT id, name, query, created_by FROM wakeboard.saved_views WHERE id = %(id)s FOR UPDATE"
COUNT = "SELECT count(*) FROM wakeboard.saved_views WHERE page = %(page)s"
INSERT = """
INSERT INTO wakeboard.saved_views (page, name, query, created_by)
VALUES (%(page)s, %(name)s, %(query)s, %(by)s) ON CONFLICT (page, name) DO NOTHING
"""
CHANGE = "UPDATE wakeboard.saved_views SET query = %(query)s WHERE id = %(id)s"
REMOVE = "DELETE FROM wakeboard.saved_views WHERE id = %(id)s"


class ViewRow(NamedTuple):
    """A saved view as its row says it."""

    id: int
    name: str
    query: str
    created_by: str


def save(
    connection: Connection,
    page: str,
    name: str,
    query: str,
    actor: Actor,
    reason: str | None = None,
    *,
    replace: bool = False,
) -> Answer:
    """Save ``query`` (the canonical query string of a page's filters) under ``name`` for everybody.

    A view of that name and another filter is changed by who saved it and by admins, when they say so by
    ``replace``, else it is 'invalid'; for others it is 'forbidden'.
    """
    name = " ".join(name.split())

    def move() -> Transition:
        if (fault := _find_fault(page, name, query)) is not None:
            return Transition(Answer(name, None, "invalid", fault))
        values = {"page": page, "name": name, "query": query, "by": actor.name}
        view = read_one(connection, BY_NAME, ViewRow, values)
        if view is not None:
            return _change(connection, view, query, actor, replace=replace)
        (count,) = connection.execute(COUNT, values).fetchone() or (0,)
        if count >= MOST:
            message = f"There are {MOST} views already: remove one first."
            return Transition(Answer(name, None, "forbidden", message))
        if not connection.execute(INSERT, values).rowcount:
            message = f"Somebody saved a view “{name}” at this moment."
            return Transition(Answer(name, "saved", "forbidden", message))
        answer = Answer(name, "saved", "done", f"View “{name}” is saved for everybody.")
        return Transition(answer, after={"query": query})

    return act(connection, actor, "view.save", ("view", name), reason, move)


def _change(connection: Connection, view: ViewRow, query: str, actor: Actor, *, replace: bool) -> Transition:
    name, before = view.name, {"query": view.query}
    if view.query == query:
        return Transition(Answer(name, "saved", "already", f"View “{name}” is this filter already."), before)
    if not _may_change(view, actor):
        return Transition(_not_yours(view))
    if not replace:
        message = (
            f"There is a view “{name}” already, for {view.query}: say that it is to be replaced, or take "
            "another name."
        )
        return Transition(Answer(name, "saved", "invalid", message), before)
    connection.execute(CHANGE, {"id": view.id, "query": query})
    return Transition(Answer(name, "saved", "done", f"View “{name}” was changed."), before, {"query": query})


def remove(connection: Connection, view_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """Remove a view: one's own, or as an admin anybody's. The runs in it stay."""

    def move() -> Transition:
        view = read_one(connection, BY_ID, ViewRow, {"id": view_id})
        if view is None:
            message = "There is no such view; it may have been removed."
            return Transition(Answer(view_id, None, "missing", message))
        if not _may_change(view, actor):
            return Transition(_not_yours(view))
        connection.execute(REMOVE, {"id": view_id})
        answer = Answer(view_id, "removed", "done", f"View “{view.name}” is removed.")
        return Transition(answer, {"name": view.name, "query": view.query})

    return act(connection, actor, "view.remove", ("view", view_id), reason, move)


def _may_change(view: ViewRow, actor: Actor) -> bool:
    return view.created_by == actor.name or actor.role.covers(Role.ADMIN)


def _not_yours(view: ViewRow) -> Answer:
    message = f"View “{view.name}” is {view.created_by}’s: take another name, or ask an admin."
    return Answer(view.name, "saved", "forbidden", message)


def _find_fault(page: str, name: str, query: str) -> str | None:
    """Return what is wrong with a view in a sentence, None when nothing is."""
    if page not in PAGES:
        return f"There are no views of “{page[:40]}”; allowed: {', '.join(PAGES)}."
    if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
        return f"The name of a view is 1 to {LONGEST_NAME} printable characters."
    if not 1 <= len(query) <= LONGEST_QUERY:
        return f"A view has a filter of 1 to {LONGEST_QUERY} characters; filter the list first."
    return None
