"""Static files: addresses that name their content, compressed once, all scripts as one file.

There is no build. A process joins the scripts when it first needs them, ours without comments and indentation
(1.3 kB less on the wire). Knows no request.
"""

from __future__ import annotations

import gzip
import re
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

# Where browsers find them.
STATIC = "/static/"
# Text alone: pictures are compressed already.
PACKED_SUFFIXES = (".css", ".js", ".svg", ".txt")

# Pages load these as one file, in this order: three requests cost a kilobyte more.
SCRIPTS = "scripts.js"
SCRIPTS_ARE = ("vendor/htmx-4.0.1.min.js", "vendor/hx-ptag-4.0.1.min.js", "app.js")

# Ours: a comment has its lines to itself, and no string goes on over the end of a line.
OURS = ("app.css", "app.js", "forms.js")
FOR_AUTHORS = re.compile(rb"^\s*(?://.*|/\*[\s\S]*?\*/)?\s*(?:\n|\Z)|^[ \t]+", re.MULTILINE)


def content(folder: str, name: str) -> bytes:
    """Return the static file ``name`` in ``folder``. Raises OSError when there is no such file."""
    if name == SCRIPTS:
        return b";\n".join(content(folder, part) for part in SCRIPTS_ARE)
    plain = (Path(folder) / name).read_bytes()
    return FOR_AUTHORS.sub(b"", plain) if name in OURS else plain


@lru_cache(maxsize=64)
def fingerprint(folder: str, name: str) -> str:
    """Return what names this version of the static file ``name`` in ``folder``: 12 hex digits of its content.

    Raises OSError when there is no such file.
    """
    return sha256(content(folder, name)).hexdigest()[:12]


@lru_cache(maxsize=64)
def packed(folder: str, name: str) -> bytes | None:
    """Return the file gzipped, made once per process; None when it would not be smaller.

    Raises OSError when there is no such file.
    """
    if not name.endswith(PACKED_SUFFIXES):
        return None
    plain = content(folder, name)
    small = gzip.compress(plain, 9, mtime=0)
    return small if len(small) < len(plain) else None
