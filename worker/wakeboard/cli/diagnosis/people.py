"""Who may come in: tokens that let somebody in for ever."""

from __future__ import annotations

from collections.abc import Iterator

from wakeboard.cli.diagnosis.finding import Finding, some_of
from wakeboard.cli.reach import Connection, rows

ENDLESS = """
SELECT name FROM wakeboard.tokens WHERE revoked_at IS NULL AND expires_at IS NULL ORDER BY name
"""


def tokens(connection: Connection) -> Iterator[Finding]:
    """Name the tokens that never expire: whoever finds such a one in a file keeps the key."""
    names = [row["name"] for row in rows(connection, ENDLESS)]
    if not names:
        yield Finding("tokens", "ok", "None is valid for ever.")
        return
    yield Finding(
        "tokens",
        "warning",
        f"Valid until somebody revokes them: {some_of(names)}.",
        "Replace them (wakeboard token create NAME --role R --days N), then: wakeboard token revoke NAME",
    )
