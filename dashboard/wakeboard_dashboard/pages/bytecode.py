"""Compiled templates, kept on disk by Jinja's own cache and loaded once before the processes are forked."""

from __future__ import annotations

import logging
from contextlib import suppress

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
    """Return a cache in the user's own folder for temporary files, or None where there can be none.

    Filters of constants are computed when a template is compiled, so each version has files of its own.
    """
    try:
        return _Cache(pattern=f"wakeboard-{__version__}-%s.cache")
    except (OSError, RuntimeError) as refused:
        log.info("compiled templates are not kept: %s", refused)
        return None


def load_all(environment: Environment) -> None:
    """Load every page template into memory. Raises TemplateSyntaxError for one that is broken."""
    for name in environment.list_templates(extensions=["html"]):
        environment.get_template(name)
