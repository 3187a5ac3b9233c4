"""Measures every request, for ``wakeboard_dashboard.web.costs``: its time, and that of its statements."""

from __future__ import annotations

import re
import time
from typing import Any

from flask import Flask, Response, current_app, g, has_app_context, request
from sqlalchemy import Engine, event
from sqlalchemy.pool import QueuePool

from wakeboard_dashboard.web import files
from wakeboard_dashboard.web.costs import Costs, Spent

STATIC = "static files"
ELSEWHERE = "no page"
EXTENSION = "wakeboard_costs"


def install(app: Flask, engines: set[Engine]) -> None:
    """Measure the requests of ``app`` and what its ``engines`` are asked; before any other hook."""
    app.before_request(_begin)
    app.after_request(_answered)
    app.teardown_request(_end)
    for engine in engines:
        event.listen(engine, "before_cursor_execute", _ask)
        event.listen(engine, "after_cursor_execute", _told)


def costs() -> Costs:
    """Return what the running app remembers."""
    return of(current_app)


def of(app: Flask) -> Costs:
    """Return what ``app`` remembers; made at first use, when all its addresses are known."""
    found = app.extensions.get(EXTENSION)
    if found is None:
        found = app.extensions.setdefault(EXTENSION, Costs(names(app)))
    assert isinstance(found, Costs)
    return found


def names(app: Flask) -> list[str]:
    """Return the names of everything that ``app`` serves, in an order that all processes share."""
    found = {
        _name(str(rule), method)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) & {"GET", "POST"}
    }
    return [*sorted(found), ELSEWHERE]


def _name(rule: str, method: str) -> str:
    """Return ``/runs/<id>`` for a page, ``POST /runs/<id>/retry`` for an act."""
    if rule.startswith(files.STATIC):
        return STATIC
    path = re.sub(r"<(?:\w+:)?(?:\w+_)?(\w+)>", r"<\1>", rule)
    return f"POST {path}" if method == "POST" else path


def _begin() -> None:
    costs().begin()
    g.measured_from = time.perf_counter()
    g.statements, g.database_seconds = 0, 0.0


def _answered(response: Response) -> Response:
    g.answered = response.status_code
    return response


def _end(failure: BaseException | None) -> None:
    """Count the request, whatever became of it; hooks of an answer are left out when one of them fails."""
    began = g.pop("measured_from", None)
    if began is None:
        return
    rule = request.url_rule
    name = ELSEWHERE if rule is None else _name(str(rule), "POST" if request.method == "POST" else "GET")
    status = g.get("answered", 500)
    spent = Spent(status, time.perf_counter() - began, g.database_seconds, g.statements, _address())
    costs().end(name, spent, _connections())


def _address() -> str:
    """Return the address without the values of its filters: no token, and nobody's search."""
    filters = "&".join(dict.fromkeys(request.args.keys()))
    return request.path + (f"?{filters}" if filters else "")


def _connections() -> int:
    database: Any = current_app.extensions["wakeboard_database"]
    pools = {database.primary.pool, database.pages.pool}
    return sum(pool.checkedout() for pool in pools if isinstance(pool, QueuePool))


def _ask(_connection: Any, _cursor: Any, _sql: str, _values: Any, context: Any, _many: bool) -> None:
    if context is not None:
        context.asked_at = time.perf_counter()


def _told(_connection: Any, _cursor: Any, _sql: str, _values: Any, context: Any, _many: bool) -> None:
    if has_app_context() and "measured_from" in g and context is not None:
        g.statements += 1
        g.database_seconds += time.perf_counter() - context.asked_at
