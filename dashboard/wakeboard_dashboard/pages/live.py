"""A page with its fragments, its JSON twin and its CSV: ``add_page`` registers all of their routes.

The page includes a fragment by ``{{ live("rows", …) }}``. The browser polls the fragment every two seconds
and gets 304 while nothing has changed. The audit log has who takes a CSV.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from flask import Blueprint, Response, g, jsonify, render_template, request
from markupsafe import Markup, escape

from wakeboard.core.text.redaction import redact
from wakeboard.database import audit
from wakeboard_dashboard.pages.fragments import fragment_tag, respond
from wakeboard_dashboard.text.formats import cell
from wakeboard_dashboard.web.connection import as_of, writing
from wakeboard_dashboard.web.params import Field, refuse_unknown
from wakeboard_dashboard.web.scopes import Scope, declare

FRAGMENTS = "/_fragments"
# What a template is filled with, and the body of a twin.
Context = Mapping[str, Any]
Json = dict[str, object]
Query = Callable[..., Context]
# A fragment is a template that takes the page's context, or a template with a query of its own.
Fragment = str | tuple[str, Query]
Twin = Callable[[Context], Mapping[str, Any]]
# The values that a path has for its arguments.
Arguments = Mapping[str, int | str]
LONGEST_FILTER = 500
NO_FIELDS: Mapping[str, Field] = {}


@dataclass(frozen=True, slots=True)
class Page:
    """What one page is made of; ``fragments`` are by name."""

    path: str
    template: str
    query: Query
    fragments: Mapping[str, Fragment]
    twin: Twin
    columns: Sequence[str] | None
    fields: Mapping[str, Field] | None

    @property
    def stem(self) -> str:
        """The path that twins and fragments build on: ``/`` is ``/overview``."""
        return "/overview" if self.path == "/" else self.path

    def fragment(self, name: str) -> tuple[str, Query]:
        """Return the template of fragment ``name`` and the query that fills it."""
        fragment = self.fragments[name]
        return (fragment, self.query) if isinstance(fragment, str) else fragment


def add_page(
    blueprint: Blueprint,
    path: str,
    template: str,
    query: Query,
    *,
    twin: Twin,
    fragments: Mapping[str, Fragment] | None = None,
    columns: Sequence[str] | None = None,
    fields: Mapping[str, Field] | None = NO_FIELDS,
    scope: Scope | None = None,
    page_scope: Scope | None = None,
) -> Page:
    """Register the routes of one page on ``blueprint`` and return the page.

    ``query(**path arguments)`` returns the context of page and fragments alike; ``twin(context)`` the JSON
    body without ``as_of``; ``columns`` (keys of the twin's items) make a CSV as well. A fragment given as
    (template, query) is filled by that query instead.

    ``fields`` are the filters that the address may name: any other is refused, for page, fragments, twin and
    CSV. With None the queries read the address themselves, and refuse what they do not know.

    ``scope`` opens twin and CSV to tokens for some job types, ``page_scope`` the page itself. Fragments are
    for browsers and stay closed to such tokens.
    """
    page = Page(path, template, query, fragments or {}, twin, columns, fields)
    name = page.stem.strip("/").replace("/", "_").translate(str.maketrans("<>:-", "____"))
    whole = declare(lambda **arguments: _page(page, arguments), page_scope)
    blueprint.add_url_rule(path, name, whole)
    twin_view = declare(lambda **arguments: _twin(page, arguments), scope)
    blueprint.add_url_rule(f"{page.stem}.json", f"{name}_json", twin_view)
    if columns is not None:
        csv_view = declare(lambda **arguments: _csv(page, arguments), scope)
        blueprint.add_url_rule(f"{page.stem}.csv", f"{name}_csv", csv_view)
    for fragment in page.fragments:
        blueprint.add_url_rule(
            f"{FRAGMENTS}{page.stem}/{fragment}",
            f"{name}_{fragment}_fragment",
            lambda fragment=fragment, **arguments: _fragment(page, fragment, arguments),
        )
    return page


def rows_twin(item: Callable[[Any], Mapping[str, object]]) -> Twin:
    """Return the twin of a list: its context's ``rows``, each as ``item`` gives it, and the next cursor."""

    def twin(context: Context) -> Json:
        body: Json = context["rows"].twin(item)
        return body

    return twin


def _context(page: Page, query: Query, arguments: Arguments) -> Context:
    """Return what ``query`` finds. Raises FilterError for a filter that the page does not know."""
    if page.fields is not None:
        refuse_unknown(page.fields)
    return query(**arguments)


def _page(page: Page, arguments: Arguments) -> str:
    context = _context(page, page.query, arguments)
    g.live = _Live(page, arguments, {page.query: context})
    return render_template(page.template, **context)


def _fragment(page: Page, fragment: str, arguments: Arguments) -> Response:
    template, query = page.fragment(fragment)
    return respond(lambda: render_template(template, **_context(page, query, arguments)))


def _twin(page: Page, arguments: Arguments) -> Response:
    body = page.twin(_context(page, page.query, arguments))
    return jsonify({"as_of": as_of(), **body})


def _csv(page: Page, arguments: Arguments) -> Response:
    assert page.columns is not None
    body = page.twin(_context(page, page.query, arguments))
    if request.method != "HEAD":
        _note_export(len(body["items"]))
    response = Response(_lines(page.columns, body["items"]), mimetype="text/csv")
    name = page.stem.strip("/").split("/")[0]
    stamped = as_of().strftime("%Y%m%dT%H%M%SZ")
    response.headers["Content-Disposition"] = f'attachment; filename="wakeboard-{name}-{stamped}.csv"'
    if body.get("next"):
        response.headers["X-Wakeboard-Next"] = body["next"]
    return response


def _note_export(count: int) -> None:
    """Write down who takes how many rows out, and by which filter; where that fails, nothing goes out."""
    filters = [f"{name}={redact({name: text})[name]}" for name, text in request.args.items(multi=True)]
    details = {"filter": "&".join(filters)[:LONGEST_FILTER]} if filters else {}
    with writing() as connection:
        audit.record(connection, g.actor, "export", "page", request.path, after={"rows": count, **details})


def _lines(columns: Sequence[str], items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the CSV (RFC 4180) line by line."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(columns)
    for item in items:
        writer.writerow([cell(item[column]) for column in columns])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


@dataclass(frozen=True, slots=True)
class _Live:
    """The page being rendered, for ``live()``: its arguments, and what each query returned."""

    page: Page
    arguments: Arguments
    contexts: dict[Query, Context]


def live(fragment: str, element: str = "div", *, id: str, every: str = "2s", **attributes: str) -> Markup:
    """Render ``fragment`` of the current page inside an element that keeps itself up to date.

    ``attributes`` are further attributes of the element (``class_`` for ``class``). Raises KeyError when
    the page has no such fragment.
    """
    current: _Live = g.live
    template, query = current.page.fragment(fragment)
    if query not in current.contexts:
        current.contexts[query] = query(**current.arguments)
    inner = render_template(template, **current.contexts[query])
    pairs = {
        "id": id,
        "data-live": "",
        "hx-get": _address(current, fragment),
        "hx-trigger": f"every {every}, live:now from:document",
        "hx-sync": "this:drop",
        "hx-swap": "innerMorph",
        "hx-ptag": fragment_tag(inner),
        **{name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()},
    }
    opening = " ".join([f'{escape(name)}="{escape(value)}"' for name, value in pairs.items()])
    return Markup(f"<{escape(element)} {opening}>{inner}</{escape(element)}>")


def _address(current: _Live, fragment: str) -> str:
    """Return the fragment's address with this page's arguments and query string."""
    path = current.page.stem
    for name, value in current.arguments.items():
        for spelled in (f"<{name}>", f"<id:{name}>", f"<path:{name}>", f"<group:{name}>"):
            path = path.replace(spelled, quote(str(value), safe=""))
    query = request.query_string.decode("ascii", "replace")
    return f"{FRAGMENTS}{path}/{fragment}" + (f"?{query}" if query else "")
