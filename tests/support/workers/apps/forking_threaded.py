"""The same handlers in a module whose import starts a thread, so that no child is forked."""

from __future__ import annotations

from tests.support.workers.apps import forking, threaded

__all__ = ["forking", "threaded"]
