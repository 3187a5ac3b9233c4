"""Compiled templates, kept on disk by Jinja's own cache and loaded once before the processes are forked."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path

from jinja2 import BytecodeCache, Environment, FileSystemBytecodeCache
from jinja2.bccache import Bucket

from wakeboard import __version__

log = logging.getLogger("wakeboard.web")


class _Cache(FileSystemBytecodeCache):
    """Jinja's cache; a full disk or a folder that is gone costs the time of compiling, and no page."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write the code of one template, if that is possible."""
        with suppress(OSError):
            super().dump_bytecode(bucket)


def cache() -> BytecodeCache | None:
    """Return a cache beside the compiled modules, or None where Python is to keep nothing there.

    Filters of constants are computed when a template is compiled, so each version has files of its own.
    """
    if sys.dont_write_bytecode:
        return None
    folder = Path(__file__).parent / "__pycache__" / "templates"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        log.info("compiled templates are not kept: %s", refused)
        return None
    python = sys.implementation.cache_tag
    return _Cache(str(folder), f"wakeboard-{__version__}-{python}-%s.cache")


def load_all(environment: Environment) -> None:
    """Load every page template into memory. Raises TemplateSyntaxError for one that is broken."""
    for name in environment.list_templates(extensions=["html"]):
        environment.get_template(name)
