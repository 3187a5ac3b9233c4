"""What is asked of saved views: those of a page, and one of them."""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, bindparam, select

from wakeboard.database.tables import saved_views

MOST_SHOWN = 100
views = saved_views.c
_OF_PAGE = (
    select(views.id, views.name, views.query, views.created_by)
    .where(views.page == bindparam("page"))
    .order_by(views.name)
    .limit(MOST_SHOWN)
)


def of_page(connection: Connection, page: str) -> list[RowMapping]:
    """Return the views of ``page`` by name, at most MOST_SHOWN: id, name, query, created_by."""
    return list(connection.execute(_OF_PAGE, {"page": page}).mappings().all())


def one(connection: Connection, view_id: int) -> RowMapping | None:
    """Return the view ``view_id``, None when there is none."""
    return connection.execute(select(saved_views).where(views.id == view_id)).mappings().one_or_none()
