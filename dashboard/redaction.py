"""Secrets in what users stored: found by the name they stand under and by how they look in text, and hidden.

Pure. Whatever shows a payload, an error, a result or an output passes it through here. What viewers may not
search for, which SQL has to know, is in ``dashboard.queries.runs``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

# The names under which people keep secrets.
_NAME = r"(?:passw(?:or)?d|passphrase|pwd|secret|token|api[-_]?key|private[-_]?key|credential)"
SECRET_KEYS = re.compile(rf"{_NAME}|pass$|authorization|cookie|dsn", re.IGNORECASE)
# In text each is a head that stays and a secret behind it. What can begin anywhere has bounded repetitions: a
# megabyte of text is read once, not once a letter.
_VALUE = r"""(?:"[^"\r\n]*"|'[^'\r\n]*'|[^\s"'&;,)}\]]+)"""
_NAME_WORDS = ("passw", "passphrase", "pwd", "secret", "token", "api", "private", "credential")
# Each with words of which ASCII text holds one, in lower case, wherever the pattern matches.
SECRET_TEXT = tuple(
    (words, re.compile(head + secret, re.IGNORECASE))
    for words, head, secret in (
        (("bearer",), r"\b(bearer\s+)", r"[a-z0-9._~+/=-]{8,}"),
        (
            ("authorization", "cookie", "x-api-key"),
            r"\b((?:authorization|cookie|x-api-key)\s{0,3}:\s{0,3})",
            r"""(?!bearer\s)[^\s"'][^\r\n"']*""",
        ),
        # The user's name goes with the password: redis://:secret@host, https://token@host.
        (
            ("://",),
            r"\b([a-z][a-z0-9+.-]{0,30}://)",
            r"""(?:[^/\s:@"']*:[^\s/"']*|[^/\s?#:@"']+)(?=@)""",
        ),
        # PGPASSWORD=…, ?token=…, --password …, and JSON or a dictionary printed into text.
        (_NAME_WORDS, rf"({_NAME}[\w-]{{0,40}}=)", _VALUE),
        (_NAME_WORDS, rf"((?<![\w-])--?[\w-]{{0,40}}{_NAME}[\w-]{{0,40}}\s{{1,3}})", _VALUE),
        (
            (*_NAME_WORDS, "authorization", "cookie"),
            rf"""((?:{_NAME}|authorization|cookie)[\w-]{{0,40}}["']\s{{0,3}}:\s{{0,3}})""",
            _VALUE,
        ),
    )
)
_TELLING = tuple({word for words, _ in SECRET_TEXT for word in words})
HIDDEN = "•••"
DEEPEST = 50
LONGEST_KEPT = 100


def redact(value: Any, depth: int = DEEPEST) -> Any:
    """Return ``value`` with what looks like a secret hidden, by key and in text; ``…`` below ``depth``."""
    if isinstance(value, str):
        return redact_text(value)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if _names_a_secret(str(key)) else redact(each, depth - 1)
            for key, each in value.items()
        }
    return [redact(each, depth - 1) for each in value]


def _names_a_secret(key: str) -> bool:
    return _short_names_a_secret(key) if len(key) <= LONGEST_KEPT else bool(SECRET_KEYS.search(key))


# The same few keys are in every row of a log; a payload's may be anything.
@lru_cache(1024)
def _short_names_a_secret(key: str) -> bool:
    return bool(SECRET_KEYS.search(key))


def redact_text(text: str) -> str:
    """Return ``text`` with what looks like a secret hidden; text without a telling word is cheap."""
    # Outside of ASCII letters have more than two cases (ſ is an s): there each pattern is tried.
    plain_text = text.lower() if text.isascii() else None
    if plain_text is not None and not _tells(plain_text):
        return text
    for words, pattern in SECRET_TEXT:
        if plain_text is None or any(word in plain_text for word in words):
            text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def _tells(text: str) -> bool:
    """Whether a telling word is in ``text``; most texts have none, and a generator takes twice as long."""
    for word in _TELLING:  # noqa: SIM110
        if word in text:
            return True
    return False
