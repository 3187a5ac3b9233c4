"""The built-in handlers, for people with no Python to write. Importing the package registers both types."""

from worker.jobs import command, http

__all__ = ["command", "http"]
