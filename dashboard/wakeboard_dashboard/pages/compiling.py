"""All templates in memory before the first request: as kept, or each half compiled by a process for it.

Compiling makes twenty times what it leaves. Done in the process that the others are forked from, it would
scatter what they share over pages that each of them then copies. No request, no database here.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType

from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket

from wakeboard_dashboard.pages import kept_templates

PROCESSES = 2


class _Compiled(BytecodeCache):
    """What was compiled elsewhere, by the template's cache key; nothing is kept for later."""

    def __init__(self, codes: dict[str, CodeType]) -> None:
        self._codes = codes

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give ``bucket`` its code; Jinja compiles what is not there."""
        bucket.code = self._codes.get(bucket.key)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Leave it: the environment itself remembers its templates."""


def load_templates(environment: Environment, file: Path | None = None) -> None:
    """Have all templates of ``environment`` in its memory. Raises TemplateSyntaxError for a broken one.

    Their code is taken from ``file`` when it is kept there; otherwise it is compiled, and kept there.
    """
    names = sorted(environment.list_templates(extensions=["html"]))
    environment.bytecode_cache = _Compiled(
        _kept(environment, names, file) if file else _compile(environment, names)
    )
    try:
        for name in names:
            environment.get_template(name)
    finally:
        environment.bytecode_cache = None


def _kept(environment: Environment, names: Sequence[str], file: Path) -> dict[str, CodeType]:
    """Return the code of each template by its cache key, from ``file`` or for it."""
    try:
        made = kept_templates.made_of(environment, names)
    except OSError:
        return _compile(environment, names)
    codes = kept_templates.read(file, made)
    if codes is None:
        codes = _compile(environment, names)
        if len(codes) == len(names):
            kept_templates.write(file, made, codes)
    return codes


def _compile(environment: Environment, names: Sequence[str]) -> dict[str, CodeType]:
    """Return what processes of ours compiled: nothing of one that came upon a broken template."""
    started = [_start(environment, names[part::PROCESSES]) for part in range(PROCESSES)]
    codes: dict[str, CodeType] = {}
    for reader, pid in started:
        with os.fdopen(reader, "rb") as pipe:
            written = pipe.read()
        # Our own child wrote it. Of one that failed the templates are compiled here, which tells why.
        with suppress(ChildProcessError):
            if os.waitpid(pid, 0)[1] == 0:
                codes |= marshal.loads(written)
    return codes


def _start(environment: Environment, names: Sequence[str]) -> tuple[int, int]:
    """Start a process that compiles ``names``; return the descriptor it writes to, and its id."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    status = 1
    try:
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            marshal.dump(_codes(environment, names), pipe)
        status = 0
    finally:
        # Neither the handlers nor the buffers of the process it came from are its own.
        os._exit(status)


def _codes(environment: Environment, names: Sequence[str]) -> dict[str, CodeType]:
    """Return the code of each template by its cache key."""
    keys = _Compiled({})
    codes: dict[str, CodeType] = {}
    assert environment.loader is not None
    for name in names:
        source, filename, _ = environment.loader.get_source(environment, name)
        code = environment.compile(source, name, filename)
        codes[keys.get_cache_key(name, filename)] = code
    return codes
