"""One test process makes hundreds of apps; Jinja's code for their templates is made once."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from flask import Flask
from jinja2 import BytecodeCache
from jinja2.bccache import Bucket
from sqlalchemy import event

from wakeboard.config.settings import Settings
from wakeboard_dashboard import create_app
from wakeboard_dashboard.pages import fragments


class _Codes(BytecodeCache):
    """The code of each source of each template, kept in memory."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give ``bucket`` the code of its very source; Jinja compiles what is not there."""
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what Jinja compiled."""
        self._codes[bucket.key, bucket.checksum] = bucket.code


_codes = _Codes()


def an_app(**settings: str) -> Flask:
    """Return the dashboard with ``settings`` and no others; it takes what apps before it compiled.

    Each poll renders anew, so that a test sees what it changed.
    """
    app = create_app(Settings.load(settings, environ={}))
    app.jinja_env.bytecode_cache = _codes
    fragments.install(app, seconds=0.0)
    return app


def overhear(app: Flask, hear: Callable[[str, Any], object]) -> None:
    """Tell ``hear`` of each statement that the pages of ``app`` send from now on, with its values."""
    event.listen(
        app.extensions["wakeboard_database"].primary,
        "before_cursor_execute",
        lambda _connection, _cursor, sql, values, *_: hear(sql, values),
    )
