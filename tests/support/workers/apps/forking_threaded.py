"""The same handlers in a module whose import starts a thread, so that no child is forked."""

from __future__ import annotations

__all__ = ["nursery_forking_app", "nursery_threaded_app"]
