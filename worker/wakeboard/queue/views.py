"""The operator's moves on saved views: a filter under a name for everybody. Each writes its audit row."""

from __future__ import annotations

from wakeboard.core.answer import Answer
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue.operator import Connection, Row, _row, act

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
COUNT = "SELECT count(*) AS views FROM wakeboard.saved_views WHERE page = %(page)s"
INSERT = """
INSERT INTO wakeboard.saved_views (page, name, query, created_by)
VALUES (%(page)s, %(name)s, %(query)s, %(by)s) ON CONFLICT (page, name) DO NOTHING RETURNING id
"""
CHANGE = "UPDATE wakeboard.saved_views SET query = %(query)s, created_by = %(by)s WHERE id = %(id)s"
REMOVE = "DELETE FROM wakeboard.saved_views WHERE id = %(id)s"

Move = tuple[Answer, Row | None, Row | None]


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

    def move() -> Move:
        wrong = _wrong(page, name, query)
        if wrong:
            return Answer(name, None, "invalid", wrong), None, None
        values: Row = {"page": page, "name": name, "query": query, "by": actor.name}
        found = _row(connection, BY_NAME, values)
        if found is not None:
            return _change(connection, found, values, actor, replace=replace)
        if (_row(connection, COUNT, values) or {"views": 0})["views"] >= MOST:
            message = f"There are {MOST} views already: remove one first."
            return Answer(name, None, "forbidden", message), None, None
        if _row(connection, INSERT, values) is None:
            message = f"Somebody saved a view “{name}” at this moment."
            return Answer(name, "saved", "forbidden", message), None, None
        return Answer(name, "saved", "done", f"View “{name}” is saved for everybody."), None, {"query": query}

    return act(connection, actor, "view.save", ("view", name), reason, move)


def remove(connection: Connection, view_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """Remove a view: one's own, or as an admin anybody's. The runs in it stay."""

    def move() -> Move:
        found = _row(connection, BY_ID, {"id": view_id})
        if found is None:
            return (
                Answer(view_id, None, "missing", "There is no such view; it may have been removed."),
                None,
                None,
            )
        if not _may_change(found, actor):
            return _not_yours(found), None, None
        connection.execute(REMOVE, {"id": view_id})
        message = f"View “{found['name']}” is removed."
        return (
            Answer(view_id, "removed", "done", message),
            {"name": found["name"], "query": found["query"]},
            None,
        )

    return act(connection, actor, "view.remove", ("view", view_id), reason, move)


def _change(connection: Connection, found: Row, values: Row, actor: Actor, *, replace: bool) -> Move:
    name, before = found["name"], {"query": found["query"]}
    if found["query"] == values["query"]:
        return Answer(name, "saved", "already", f"View “{name}” is this filter already."), before, None
    if not _may_change(found, actor):
        return _not_yours(found), None, None
    if not replace:
        message = (
            f"There is a view “{name}” already, for {found['query']}: say that it is to be replaced, or take "
            "another name."
        )
        return Answer(name, "saved", "invalid", message), before, None
    connection.execute(CHANGE, values | {"id": found["id"], "by": found["created_by"]})
    return Answer(name, "saved", "done", f"View “{name}” was changed."), before, {"query": values["query"]}


def _may_change(found: Row, actor: Actor) -> bool:
    return bool(found["created_by"] == actor.name or actor.role.covers(Role.ADMIN))


def _not_yours(found: Row) -> Answer:
    message = f"View “{found['name']}” is {found['created_by']}’s: take another name, or ask an admin."
    return Answer(found["name"], "saved", "forbidden", message)


def _wrong(page: str, name: str, query: str) -> str | None:
    """Return what is wrong with a view in a sentence, None when nothing is."""
    if page not in PAGES:
        return f"There are no views of “{page[:40]}”; allowed: {', '.join(PAGES)}."
    if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
        return f"The name of a view is 1 to {LONGEST_NAME} printable characters."
    if not 1 <= len(query) <= LONGEST_QUERY:
        return f"A view has a filter of 1 to {LONGEST_QUERY} characters; filter the list first."
    return None


__all__ = ["LONGEST_NAME", "remove", "save"]
