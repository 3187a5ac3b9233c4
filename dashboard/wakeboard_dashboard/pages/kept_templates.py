"""Compiled templates kept from start to start, as Python keeps its modules: beside them, in ``__pycache__``.

They are taken as long as all that they were made of is the same, byte by byte: Jinja's own cache looks at the
template alone, and what our filters say of constants is part of the code too. Whoever may write there may
change our modules as well. Nothing is compiled here.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import CodeType

from jinja2 import Environment

_HERE = Path(__file__).parent
# A filter of a constant is worked out when its template is compiled: what filters call is part of the code.
_MODULES = (_HERE, _HERE.parent / "worker")
_PACKAGES = ("flask", "jinja2", "markupsafe")
_SUM_BYTES = sha256().digest_size
READABLE = 0o644


def place() -> Path | None:
    """Return the file where this Python keeps what it compiled, or None when it is to keep nothing."""
    keeps = not sys.dont_write_bytecode and sys.implementation.cache_tag is not None
    return Path(cache_from_source(str(_HERE / "templates.py"))) if keeps else None


def made_of(environment: Environment, names: Sequence[str]) -> bytes:
    """Return the sum of what the code of the templates ``names`` depends on.

    Raises OSError when a part of it cannot be read, and when a package does not say its version.
    """
    total = sha256(MAGIC_NUMBER)
    for name, content in _parts(environment, names):
        total.update(f"{name}\n{len(content)}\n".encode())
        total.update(content)
    return total.digest()


def _parts(environment: Environment, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Give the name and content of each of them: packages by their versions, our modules, the templates."""
    assert environment.loader is not None
    for package in _PACKAGES:
        try:
            yield package, version(package).encode()
        except PackageNotFoundError as unknown:
            raise OSError(f"The version of {package} is not known.") from unknown
    for module in sorted(each for folder in _MODULES for each in folder.rglob("*.py")):
        yield str(module), module.read_bytes()
    for name in names:
        source, filename, _ = environment.loader.get_source(environment, name)
        yield f"{name} {filename}", source.encode()


def read(file: Path, made: bytes) -> dict[str, CodeType] | None:
    """Return what ``write`` kept in ``file`` of the same ``made``; None unless it is there, and whole."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    body = content[2 * _SUM_BYTES :]
    if content[: 2 * _SUM_BYTES] != made + sha256(body).digest():
        return None
    codes: dict[str, CodeType] = marshal.loads(body)
    return codes


def write(file: Path, made: bytes, codes: dict[str, CodeType]) -> None:
    """Keep ``codes``, whole or not at all. A folder that we may not write to is no error."""
    body = marshal.dumps(codes)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        # For its owner alone to write, whatever the umask: what is in it is run.
        with NamedTemporaryFile(prefix=f"{file.stem}.", dir=file.parent, delete=False) as beside:
            try:
                beside.write(made + sha256(body).digest() + body)
                beside.close()
                Path(beside.name).chmod(READABLE)
                Path(beside.name).replace(file)
            except BaseException:
                Path(beside.name).unlink()
                raise
