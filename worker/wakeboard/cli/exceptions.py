"""Exceptions of commands. Imports nothing, because every command loads it."""

from __future__ import annotations


class WrongUse(Exception):
    """The command was used wrongly (exit code 2); ``str()`` is a sentence that says what is allowed."""


class CommandFailed(Exception):
    """The command could not be done (exit code 1); ``str()`` is a sentence that says why."""
