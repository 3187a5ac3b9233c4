"""Text from outside, cut and made safe for a screen, a log and PostgreSQL. Pure."""

from __future__ import annotations

import re
from typing import Literal

# Controls but tab and newline, lone surrogates, and the marks that reverse the direction of text on a screen.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
# Escape sequences of terminals (ECMA-48), whole, or cut by the end of the text: CSI, such as colours;
# strings, such as a window's title, never beyond their line; all others.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_GAP = "\n… {:,} bytes left out …\n"
# How far from a cut the end of a line is searched for.
_LINE_BYTES = 1024


def render_terminal(text: str) -> str:
    """Return `text` as a terminal would leave it, but for colours: CRLF is a new line, a lone CR begins the
    line anew, a backspace goes back by one character, escape sequences are gone."""
    if "\x1b" in text or "\x9b" in text or "\x9d" in text:
        text = _ESCAPES.sub("", text)
    if "\r" in text or "\b" in text:
        text = "\n".join(map(_render_line, text.split("\n")))
    return text


def _render_line(line: str) -> str:
    # A CR before the line's end is part of the end.
    if "\r" in line:
        line = line.rstrip("\r").rpartition("\r")[2]
    if "\b" not in line:
        return line
    # What comes after a backspace overwrites.
    shown: list[str] = []
    place = 0
    for letter in line:
        if letter == "\b":
            place = max(place - 1, 0)
        else:
            shown[place : place + 1] = letter
            place += 1
    return "".join(shown)


def safe_text(text: str) -> str:
    """Return `text` as a terminal renders it, every character that neither a screen nor PostgreSQL can hold
    replaced by U+FFFD."""
    # What a terminal would change has one of these; most texts have none.
    if _UNSAFE.search(text) is None:
        return text
    return _UNSAFE.sub("\ufffd", render_terminal(text))


def clean_text(text: str, limit: int, *, keep: Literal["head", "ends", "tail"] = "head") -> str:
    """Return at most `limit` characters of `text`, as `safe_text` makes them.

    `keep` says which part of a longer text stays; the gap is marked.
    """
    length = str.__len__(text)
    if length <= limit:
        return safe_text(str.__str__(text))
    if keep == "head":
        return safe_text(str.__getitem__(text, slice(0, limit - 1))) + "…"
    if keep == "tail":
        return "…" + safe_text(str.__getitem__(text, slice(length - limit + 1, length)))
    gap = f"\n… {length - limit} characters left out …\n"
    half = max((limit - len(gap)) // 2, 0)
    head, tail = str.__getitem__(text, slice(0, half)), str.__getitem__(text, slice(length - half, length))
    return safe_text(head) + gap + safe_text(tail)


def head_and_tail(head: bytes, tail: bytes, total: int, limit: int) -> str:
    """Return the beginning of `head` and the end of `tail`, of at most `limit` bytes together, with a line
    between them that says how many of `total` bytes are missing.

    Both are UTF-8; a quarter is the head's. Where a line ends near a cut, the cut is there.
    """
    room = limit - len(_GAP.format(total).encode())
    first, last = _cut_end(head, room // 4), _cut_begin(tail, room - room // 4)
    gap = _GAP.format(total - len(first) - len(last))
    return first.decode(errors="ignore").removesuffix("\n") + gap + last.decode(errors="ignore")


def _cut_end(text: bytes, most: int) -> bytes:
    if len(text) <= most:
        return text
    place = text.rfind(b"\n", max(most - _LINE_BYTES, 0), most)
    return text[:most] if place < 0 else text[: place + 1]


def _cut_begin(text: bytes, most: int) -> bytes:
    if len(text) <= most:
        return text
    begin = len(text) - most
    return text[text.find(b"\n", begin, begin + _LINE_BYTES) + 1 or begin :]


def first_line(failure: object) -> str:
    """Return the first line of an error's text, without what PostgreSQL shows below it."""
    return str(failure).strip().split("\n", 1)[0]


def describe_error(failure: BaseException) -> str:
    """Return the type and the text of ``failure`` in one line of at most 500 characters."""
    text = " ".join(str(failure).split())
    return f"{type(failure).__name__}: {text}"[:500] if text else type(failure).__name__


def last_line(text: str) -> str:
    """Return the last line of ``text`` that is not blank, stripped; empty when all are."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def cut_middle(text: str, limit: int) -> str:
    """Return both ends of `text`, of at most `limit` bytes together with the mark between them."""
    encoded = text.encode("utf-8")
    if len(encoded) <= limit:
        return text
    gap = "\n… the middle is left out …\n"
    half = (limit - len(gap.encode("utf-8"))) // 2
    return encoded[:half].decode("utf-8", "ignore") + gap + encoded[-half:].decode("utf-8", "ignore")
