"""The one error of the embedded server."""


class EmbeddedError(Exception):
    """The embedded PostgreSQL cannot be used; ``str()`` is a sentence that says why and what to do."""
