"""The dashboard: server-rendered pages of the tables that ``wakeboard`` owns. The factory is ``create_app``."""

from wakeboard_dashboard.app import create_app

__all__ = ["create_app"]
