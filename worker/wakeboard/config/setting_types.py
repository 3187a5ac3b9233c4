"""Parsers of the texts of settings, one for each type of value.

Each returns the value, and raises ValueError or KeyError when the text is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from zoneinfo import available_timezones

from wakeboard.core.process.os_user import is_user_name

Number = TypeVar("Number", int, float)
MAIL_SCHEMES = ("smtp", "smtp+starttls", "smtps")
SHORTEST_SECRET = 16
_MODULE = re.compile(r"[^\W\d][\w-]*(?:\.[^\W\d][\w-]*)*")
_HOST = re.compile(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]")


class InvalidSetting(ValueError):
    """A wrong value; ``suggestion`` is the one that was probably meant, None where there is none."""

    def __init__(self, suggestion: str | None) -> None:
        super().__init__(suggestion)
        self.suggestion = suggestion


def number(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of a number from ``low`` to ``high``."""
    return _between(float, low, high)


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of a whole number from ``low`` to ``high``."""
    return _between(int, low, high)


def _between(number_of: Callable[[str], Number], low: Number, high: Number) -> Callable[[str], Number]:
    def read(text: str) -> Number:
        value = number_of(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return read


def switch(text: str) -> bool:
    """Read a word for yes or no."""
    words = {
        "1": True,
        "true": True,
        "on": True,
        "yes": True,
        "0": False,
        "false": False,
        "off": False,
        "no": False,
    }
    return words[text.strip().lower()]


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser of one of ``words``."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return read


def moves(text: str) -> str:
    """Read which claims and successes are logged."""
    # Imported here, because applications that enqueue read settings and log nothing.
    from wakeboard.config.log import read_moves

    read_moves(text)
    return text


def zone(text: str) -> str:
    """Read the name of a time zone."""
    if text not in available_timezones():
        raise ValueError
    return text


def bind(text: str) -> str:
    """Read HOST:PORT."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not 0 <= int(port) <= 65535:
        raise ValueError
    return text


def conninfo(text: str) -> str:
    """Read the address of a database, as libpq does."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        parameters = conninfo_to_dict(text)
    except ProgrammingError as wrong:
        raise ValueError from wrong
    # An unescaped @ or / in a password makes a part of it a host or port, which would be looked up and
    # logged. A host that begins with @ is an abstract socket.
    hosts, ports = (str(parameters.get(name) or "").split(",") for name in ("host", "port"))
    if any("@" in host[1:] for host in hosts) or not all(port.strip().isdigit() for port in ports if port):
        raise ValueError
    return text


def web_url(text: str) -> str:
    """Read an http or https URL."""
    if urlsplit(text).scheme not in ("http", "https"):
        raise ValueError
    return text


def secret_url(text: str) -> str:
    """Read an http or https URL that holds a key."""
    return web_url(text)


def mail_server(text: str) -> str:
    """Read the URL of a mail server."""
    parts = urlsplit(text)
    if parts.scheme not in MAIL_SCHEMES or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError
    if parts.port == 0:
        raise ValueError
    return text


def addresses(text: str) -> str:
    """Read mail addresses, separated by commas."""
    mail_addresses = [address.strip() for address in text.split(",")]
    for address in mail_addresses:
        name, _, host = address.rpartition("@")
        if not name or not host or any(c <= " " or c in "<>,;\x7f" for c in address):
            raise ValueError
    return ", ".join(mail_addresses)


def address(text: str) -> str:
    """Read one mail address."""
    if "," in text:
        raise ValueError
    return addresses(text)


def secret(text: str) -> str:
    """Read a key that is long enough."""
    if len(text) < SHORTEST_SECRET:
        raise ValueError
    return text


def module(text: str) -> str:
    """Read the absolute name of a module: not of its file, nor of an object in it."""
    if not _is_module(text):
        raise InvalidSetting(_similar_module(text))
    return text


def _is_module(text: str) -> bool:
    return _MODULE.fullmatch(text) is not None and not text.endswith(".py")


def _similar_module(text: str) -> str | None:
    """Return ``shop.jobs`` for ``./shop/jobs.py:app``; of an absolute path its last name alone."""
    path = text.strip().partition(":")[0].replace("\\", "/").rstrip("/")
    if path.startswith("/"):
        path = path.rpartition("/")[2]
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".").strip(".")
    return name if _is_module(name) else None


def path(text: str) -> Path:
    """Read the path of a folder or file, which need not be there."""
    if not text:
        raise ValueError
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        # ~ of an unknown user, or of one without a home.
        raise ValueError from error


def names(text: str) -> str:
    """Read names of hosts, separated by commas: neither a scheme nor a port, an IPv6 address in brackets."""
    values = [name.strip().lower() for name in text.split(",")]
    if not all(_HOST.fullmatch(name) for name in values):
        raise ValueError
    return ", ".join(values)


def users(text: str) -> str:
    """Read names of OS users, separated by commas; whether they exist is checked by who becomes them."""
    values = [name.strip() for name in text.split(",")]
    if not all(is_user_name(name) for name in values):
        raise ValueError
    return ",".join(values)
