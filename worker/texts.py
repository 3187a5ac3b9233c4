"""Text of strangers, cut and made safe: for a screen, a log and PostgreSQL. Pure."""

from __future__ import annotations

import re
from typing import Literal

# Controls but tab and newline, lone surrogates, and the marks that reverse the direction of text on a screen.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def clean_text(text: str, limit: int, *, keep: Literal["head", "ends", "tail"] = "head") -> str:
    """`text` of at most `limit` characters, every character that a screen or PostgreSQL cannot hold replaced
    by U+FFFD.

    `keep` says which part of a longer text stays; the gap is marked.
    """
    length = str.__len__(text)
    if length <= limit:
        return _UNSAFE.sub("\ufffd", str.__str__(text))
    if keep == "head":
        return _UNSAFE.sub("\ufffd", str.__getitem__(text, slice(0, limit - 1))) + "…"
    if keep == "tail":
        return "…" + _UNSAFE.sub("\ufffd", str.__getitem__(text, slice(length - limit + 1, length)))
    gap = f"\n… {length - limit} characters left out …\n"
    half = max((limit - len(gap)) // 2, 0)
    head, tail = str.__getitem__(text, slice(0, half)), str.__getitem__(text, slice(length - half, length))
    return _UNSAFE.sub("\ufffd", head) + gap + _UNSAFE.sub("\ufffd", tail)


def first_line(failure: object) -> str:
    """Return what a failure says without what is below it, such as the statement that PostgreSQL draws."""
    return str(failure).strip().split("\n", 1)[0]


def ends_within(text: str, limit: int) -> str:
    """Both ends of `text`, of at most `limit` bytes together with the mark between them."""
    encoded = text.encode("utf-8")
    if len(encoded) <= limit:
        return text
    gap = "\n… the middle is left out …\n"
    half = (limit - len(gap.encode("utf-8"))) // 2
    return encoded[:half].decode("utf-8", "ignore") + gap + encoded[-half:].decode("utf-8", "ignore")
