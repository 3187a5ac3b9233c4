"""Hides secrets in what users stored: found by their key, and by how they look in text.

Pure. Every payload, error, result and output that is shown on a page or logged passes through here. What
viewers may not search for, which SQL has to know, is in ``wakeboard_dashboard.queries.runs``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from string import ascii_uppercase
from typing import Any

HIDDEN = "•••"
# The names under which people keep secrets. As the end of a word alone is dsn one: not in fieldsname; and as
# the last part of several is pass: DB_PASS, --pass, but not in "pass=3 fail=1" or two_pass_mode.
_KEY = r"(?:api|access|private)[-_]?key"
_PASS = r"[_-]pass(?![\w-])"
_PASSWORD = rf"passw(?:or)?d|passphrase|pwd|{_PASS}"
_NAME = rf"(?:{_PASSWORD}|secret|token|{_KEY}|credential|dsn(?![a-z]))"
SECRET_KEYS = re.compile(rf"{_NAME}|pass$|authorization|cookie|(?-i:dsn(?![a-z]))", re.IGNORECASE)
_PASSWORD_WORDS = ("passw", "passphrase", "pwd", "_pass", "-pass")
_NAME_WORDS = (*_PASSWORD_WORDS, "secret", "token", "api", "access", "private", "credential", "dsn")
_FLAG = rf"-(?<![\w-]-)-?[\w-]{{0,40}}{_NAME}[\w-]{{0,40}}+"
_SECRET_FLAG = re.compile(_FLAG, re.IGNORECASE)
# In text each is a head that stays and what the secret behind it looks like; None: it is a value of any kind.
# What can begin anywhere has bounded repetitions: a megabyte of text is read once, not once a letter. Each
# with words of which a text holds one wherever the head matches. They match lower case: to match both cases
# takes five times as long.
SECRET_TEXT = tuple(
    (words, re.compile(head), None if secret is None else re.compile(secret))
    for words, head, secret in (
        (("bearer",), r"\bbearer\s+", r"[a-z0-9._~+/=-]{8,}"),
        (
            ("authorization", "cookie", "x-api-key"),
            r"(?<![a-z0-9])(?:authorization|cookie|x-api-key)\s{0,3}:\s{0,3}",
            rf"""(?!bearer\s+{HIDDEN})[^\s"'][^\r\n"']*""",
        ),
        # As an argument or a variable: authorization=Basic …, HTTP_COOKIE=a=b; sid=….
        (
            ("authorization",),
            r"authorization[ \t]{0,3}={1,3}[ \t]{0,3}(?:(?:basic|bearer|digest|negotiate|token)[ \t]{1,3})?",
            None,
        ),
        (
            ("cookie",),
            r"cookies?[ \t]{0,3}={1,3}[ \t]{0,3}",
            r"""[^\s"'&;,)}\]\[{(][^\s"'&;,)}\]]*(?:;[ \t]{0,3}[\w.-]{1,100}=[^\s"'&;,)}\]]*)*""",
        ),
        (("cookie",), r"cookies?[ \t]{0,3}={1,3}[ \t]{0,3}", None),
        # The user's name goes with the password: redis://:secret@host, https://token@host. A text that was
        # cut may end before the @; a number there is a port.
        (
            ("://",),
            r"\b[a-z][a-z0-9+.-]{0,30}://",
            r"""(?:[^/\s:@"']*:[^\s/"']*|[^/\s?#:@"']+)(?=@)|[^/\s:@"'[]*:(?!\d{1,5}\W?\Z)[^\s/"']+\Z""",
        ),
        # PGPASSWORD=…, ?token=…, --password …, and that in a list of words.
        (_NAME_WORDS, rf"{_NAME}[\w-]{{0,40}}+[ \t]{{0,3}}={{1,3}}[ \t]{{0,3}}", None),
        (_NAME_WORDS, rf"""{_FLAG}(?:\\{{0,3}}["']\s{{0,3}},\s{{0,3}}|\s{{1,3}})""", None),
        # JSON or a dictionary printed into text, or into a text inside of that.
        (
            (*_NAME_WORDS, "authorization", "cookie"),
            rf"""(?:{_NAME}|authorization|cookie)[\w-]{{0,40}}+\\{{0,3}}["']\s{{0,3}}:\s{{0,3}}""",
            None,
        ),
        (("pass'", 'pass"', "pass\\"), r"""(?<=["'])pass\\{0,3}["']\s{0,3}:\s{0,3}""", None),
        # As in YAML. People write "invalid token: it has expired", too.
        (_PASSWORD_WORDS, rf"(?:{_PASSWORD})[\w-]{{0,40}}+:[ \t]{{1,3}}", None),
        (_NAME_WORDS, rf"{_NAME}[\w-]{{0,40}}+:[ \t]{{1,3}}", r"""(?=\S{0,200}\d|\S{16})[^\s&;,)}\]]+"""),
    )
)
# Letter by letter, so that positions stay; outside of ASCII three letters are the same as one of these.
_LOWER_CASE = {ord(letter): letter.lower() for letter in ascii_uppercase} | str.maketrans("İıſK", "iisk")
# A letter before the quote says what kind of text it is, as in b'…'; a text inside of a text has its quotes
# escaped. What was cut ends with its line.
_OPENING = re.compile(r"""[bru]{0,2}(?P<escape>\\{0,3})(?P<quote>["'])""", re.IGNORECASE)
_CLOSING = {
    (quote, is_escaped): re.compile(
        rf"(?:[^{quote}\r\n]|(?<=\\\\){quote})*{quote}?"
        if is_escaped
        else rf"(?:[^{quote}\\\r\n]|\\.)*{quote}?"
    )
    for quote in "\"'"
    for is_escaped in (False, True)
}
_PIECES = re.compile(r"""[\[{(\]})\r\n]|"(?:[^"\\\r\n]|\\.)*"?|'(?:[^'\\\r\n]|\\.)*'?""")
_WORD = re.compile(r"""[^\s"'&;,)}\]]+""")
_SECRET_WORDS = tuple({word for words, _, _ in SECRET_TEXT for word in words})
MAX_DEPTH = 50
_LONGEST_CACHED_KEY = 100


def redact(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return ``value`` with what looks like a secret hidden, by key and in text; ``…`` below ``depth``."""
    if isinstance(value, str):
        return redact_text(value)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if _is_secret_key(str(key)) else redact(each, depth - 1)
            for key, each in value.items()
        }
    return [
        HIDDEN if is_secret_item(value, index) else redact(each, depth - 1)
        for index, each in enumerate(value)
    ]


def is_secret_item(items: Sequence[object], index: int) -> bool:
    """Return whether the item before names a secret, as in ``["pg_dump", "--password", …]``."""
    before = items[index - 1] if index else None
    return isinstance(before, str) and _SECRET_FLAG.fullmatch(before) is not None


def _is_secret_key(key: str) -> bool:
    is_short = len(key) <= _LONGEST_CACHED_KEY
    return _is_short_secret_key(key) if is_short else SECRET_KEYS.search(key) is not None


# The same few keys are in every row of a log; a payload's may be anything.
@lru_cache(1024)
def _is_short_secret_key(key: str) -> bool:
    return SECRET_KEYS.search(key) is not None


def redact_text(text: str) -> str:
    """Return ``text`` with what looks like a secret hidden; text without a secret word is cheap."""
    lower = text.lower() if text.isascii() else text.translate(_LOWER_CASE)
    if not _has_secret_word(lower):
        return text
    for words, head, secret in SECRET_TEXT:
        if any(word in lower for word in words):
            text, lower = _hide(text, lower, head, secret)
    return text


def _hide(text: str, lower: str, head: re.Pattern[str], secret: re.Pattern[str] | None) -> tuple[str, str]:
    """Return ``text``, and the same in lower case, with what follows each ``head`` hidden, as far as it looks
    like ``secret``.
    """
    parts: list[str] = []
    lower_parts: list[str] = []
    position = 0
    while (match := head.search(lower, position)) is not None:
        begin = match.end()
        end = _end_of_value(text, begin) if secret is None else _end_of_match(secret, lower, begin)
        hidden = HIDDEN if end > begin else ""
        parts += (text[position:begin], hidden)
        lower_parts += (lower[position:begin], hidden)
        position = end
    if not parts:
        return text, lower
    return "".join((*parts, text[position:])), "".join((*lower_parts, lower[position:]))


def _end_of_match(pattern: re.Pattern[str], text: str, begin: int) -> int:
    match = pattern.match(text, begin)
    return begin if match is None else match.end()


def _end_of_value(text: str, begin: int) -> int:
    """Return where a value ends that begins at ``begin``: a quoted text, a list, an object or a word."""
    quoted = _OPENING.match(text, begin)
    if quoted is not None:
        return _end_of_match(_CLOSING[quoted["quote"], bool(quoted["escape"])], text, quoted.end())
    if text[begin : begin + 1] not in ("[", "{", "("):
        return _end_of_match(_WORD, text, begin)
    depth = 0
    for piece in _PIECES.finditer(text, begin):
        if piece[0] in "\r\n":
            return piece.start()
        depth += (piece[0] in "[{(") - (piece[0] in "]})")
        if depth == 0:
            return piece.end()
    return len(text)


def _has_secret_word(text: str) -> bool:
    # Most texts have none, and a generator takes twice as long.
    for word in _SECRET_WORDS:  # noqa: SIM110
        if word in text:
            return True
    return False
