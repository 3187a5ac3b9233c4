"""What a command raises that cannot be done as it was asked. Needs nothing, for every command loads it."""

from __future__ import annotations


class WrongUse(Exception):
    """The command was used wrongly (exit code 2); ``str()`` is a sentence that says what is allowed."""


class NotDone(Exception):
    """The command could not be done (exit code 1); ``str()`` is a sentence that says why."""
