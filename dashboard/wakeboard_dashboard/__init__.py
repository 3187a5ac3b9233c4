"""The dashboard: server-rendered pages of the tables that ``wakeboard`` owns. ``create_app`` makes it."""

from wakeboard_dashboard.app import create_app

__all__ = ["create_app"]
