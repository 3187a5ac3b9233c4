"""Error groups: failures with the same type, code, message without its variable parts, and place of origin.

Pure, and the same in every process and version: the group's number is a hash of these words alone. It is
computed once, by whoever records the failure. How much text is read and kept is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

LOST = "lease_lost"
LOST_TEMPLATE = "the worker fell silent and its lease ended"
# Hexadecimal digits of the group's number: 52 bits, which every reader of JSON holds exactly.
DIGITS = 13
# A group that is seen again after so many days without a failure has returned.
QUIET_DAYS = 7
TEMPLATE_CHARACTERS = 300
FRAME_CHARACTERS = 200
_READ_CHARACTERS = 500
# These stop a handler wherever it is: the frame that they interrupted is not a cause.
CODES_WITHOUT_FRAME = frozenset({"timed_out", "memory_limit", "lease_unconfirmed", "crashed", LOST})
# Part of the hash: another way to replace variable parts would make every group new.
_VERSION = "1"

# An address of IPv6, with brackets and port or without.
_IPV6 = (
    r"\[?(?<![\w:])(?:(?:[0-9a-fA-F]{1,4}:|::)(?:[0-9a-fA-F]{0,4}:){1,7}[0-9a-fA-F]{0,4}|::[0-9a-fA-F]{1,4})"
    r"(?:\]:\d{1,5}|\])?"
)
# In order: what stands in quotes may be anything, and an address holds numbers. Each has markers, of which
# one is in whatever the pattern matches: to search for those takes a tenth of the time.
_VARIABLE_PARTS = tuple(
    (markers, re.compile(pattern), word)
    for markers, pattern, word in (
        (
            ("'", '"', "`"),
            r"""(?<![\w\\])(?:'[^'\n]{0,300}'|"[^"\n]{0,300}"|`[^`\n]{0,300}`)(?!\w)""",
            "<value>",
        ),
        (
            ("„", "“", "«", "‘"),
            r"„[^“”\n]{0,300}[“”]|“[^”\n]{0,300}”|‘[^’\n]{0,300}’|«[^»\n]{0,300}»",
            "<value>",
        ),
        (("://",), r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s<>)\]]{1,300}", "<address>"),
        (("@",), r"(?<![\w.+-])[\w.+-]{1,100}@[\w-]{1,100}(?:\.[\w-]{1,100}){0,8}", "<address>"),
        (("-",), r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<id>"),
        (
            ("-",),
            r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?: ?(?:Z|[+-]\d\d:?\d\d)\b)?",
            "<time>",
        ),
        ((":",), r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b", "<time>"),
        ((".",), r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b", "<address>"),
        ((":",), _IPV6, "<address>"),
        (("0x", "0X"), r"\b0[xX][0-9a-fA-F]+\b", "<id>"),
        (("",), r"\b(?=[0-9a-fA-F]{0,63}\d)[0-9a-fA-F]{8,64}\b", "<id>"),
        (("/",), r"(?<![\w<])(?:~|\.{1,2})?(?:/[\w.@+-]{1,255}){2,64}/?", "<path>"),
        (("",), r"(?:(?<!\w)[-+])?\d+(?:[.,_]\d+)*(?:[eE][-+]?\d+)?", "<n>"),
    )
)
# What ``wakeboard.core.outcome`` adds to the message of a group's first exception: how many failed beside it.
_OTHER_FAILURES = re.compile(r" \(and [\d,]{1,9} more\)$")
_FRAME = re.compile(r'  File "(.{1,1000})", line (\d{1,9}), in (.{1,300})')
# Where packages are installed, and the standard library of any Python.
_INSTALLED = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib(?:64)?/python\d+(?:\.\d+)?(?:\.zip)?)/|^<"
)
_PRODUCT = f"{Path(__file__).parents[2]}/"
# The example handlers count as the author's own code.
_EXAMPLES = "wakeboard/demo/"


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """A group of failures.

    ``template`` is the message without its changing parts; ``frame`` where the author's own code raised
    (``crm.py in send_invoice``), None when no such code was on the way.
    """

    id: int
    template: str
    frame: str | None

    @property
    def fingerprint(self) -> str:
        """The group's number as addresses and filters write it."""
        return format_fingerprint(self.id)


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One line of a trace; ``is_own``: a frame, or its source, of the author's own code."""

    text: str
    is_own: bool


# One fault fails many runs with the same words; a traceback may be long.
@lru_cache(maxsize=32)
def group_of(job_type: str, code: str, message: str | None, traceback: str | None = None) -> ErrorGroup:
    """Return the group of a failure. The texts may be of any length; bounded parts of them count."""
    template = template_of(_OTHER_FAILURES.sub("", message or ""))
    frame = None if code in CODES_WITHOUT_FRAME else own_frame(traceback or "")
    words = "\0".join((_VERSION, job_type, code, template, frame or ""))
    digest = blake2b(words.encode("utf-8", "replace"), digest_size=8).digest()
    return ErrorGroup((int.from_bytes(digest) >> (64 - 4 * DIGITS)) or 1, template, frame)


def lost_group(job_type: str) -> ErrorGroup:
    """Return the group of attempts of ``job_type`` whose worker was gone, whoever took the run back."""
    return group_of(job_type, LOST, LOST_TEMPLATE)


def format_fingerprint(number: int) -> str:
    """Return a group's number as thirteen hexadecimal digits."""
    return f"{number:0{DIGITS}x}"


def parse_fingerprint(text: str) -> int:
    """Return the number of a group, written as ``format_fingerprint`` does. Raises ValueError."""
    if not re.fullmatch(f"[0-9a-f]{{{DIGITS}}}", text):
        raise ValueError(f"“{text[:40]}” is no error group: it is {DIGITS} digits 0-9 a-f.")
    return int(text, 16)


@lru_cache(maxsize=256)
def template_of(message: str) -> str:
    """Return ``message`` in one line, with ``<n>``, ``<id>``, ``<value>`` … for what changes."""
    text = message[:_READ_CHARACTERS]
    for markers, pattern, word in _VARIABLE_PARTS:
        for marker in markers:
            if marker in text:
                text = pattern.sub(word, text)
                break
    text = " ".join(text.split())
    return text if len(text) <= TEMPLATE_CHARACTERS else f"{text[: TEMPLATE_CHARACTERS - 1]}…"


def own_frame(traceback: str) -> str | None:
    """Return the innermost frame of the author's own code, as ``file in function``; None without one.

    Without the line, which edits move, and the folder, because releases are unpacked into new ones.
    """
    for line in reversed(traceback.splitlines()):
        if (frame := _FRAME.fullmatch(line)) and is_own(frame[1]):
            file = frame[1].rpartition("/")[2]
            return f"{file} in {frame[3]}"[:FRAME_CHARACTERS]
    return None


def is_own(path: str) -> bool:
    """Return whether a file is neither Python's own, an installed package's nor this product's."""
    if _EXAMPLES in path:
        return True
    return not (_INSTALLED.search(path) or path.startswith(_PRODUCT))


def trace_lines(traceback: str) -> Iterator[TraceLine]:
    """Yield the lines of a trace, the author's own frames marked together with the source below them."""
    is_own_frame = False
    for line in traceback.splitlines():
        if frame := _FRAME.fullmatch(line):
            is_own_frame = is_own(frame[1])
        elif not line.startswith("    "):
            is_own_frame = False
        yield TraceLine(line, is_own_frame)
