"""The built-in handlers, for people with no Python to write. Importing the package registers the types."""

from wakeboard.handlers.builtin import alert, command, http

__all__ = ["alert", "command", "http"]
