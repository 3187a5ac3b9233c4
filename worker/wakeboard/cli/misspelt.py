"""Variables that look like ours and that nobody reads: said by every command, and by doctor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields

from wakeboard.config.settings import PREFIX, Settings

# Ours, and no settings: what a command's process is told of its run, and where the tests find a server.
OTHERS = frozenset({"RUN_ID", "ATTEMPT", "KEY", "SCHEDULED_FOR", "TEST_DATABASE_URL"})
# How alike a name must be to a setting's to be taken for it, misspelt: 1 is the same.
MISSPELT = 0.8


def misspelt(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each variable that looks like one of ours and is no setting: nobody reads it.

    What is not like any setting's name may be somebody's own, and is not told.
    """
    known = [entry.name.upper() for entry in fields(Settings) if "read" in entry.metadata]
    given = sorted(name for name in (os.environ if environ is None else environ) if name.startswith(PREFIX))
    strange = [name for name in given if name.removeprefix(PREFIX) not in OTHERS.union(known)]
    if not strange:
        return []
    from difflib import get_close_matches

    said = []
    for name in strange:
        for meant in get_close_matches(name.removeprefix(PREFIX), known, 1, MISSPELT):
            said.append(f"{name} is no setting, so nobody reads it. Did you mean {PREFIX}{meant}?")
    return said
