"""What kind of file was given as a crontab: its text, or a sentence that says what it is instead. Pure."""

from __future__ import annotations

import codecs
import re

LARGEST_FILE = 4 * 1_048_576
# Period, delay in minutes, a name and a command. No day of the month is a word of three letters.
_ANACRON = re.compile(
    r"(?:\d{1,3}|@(?:daily|weekly|monthly|yearly|annually))[ \t]+\d{1,5}[ \t]+[A-Za-z][\w.-]{2,}[ \t]+\S.*",
    re.IGNORECASE,
)
# A comment, or a variable.
_ASIDE = re.compile(r"#|\w+[ \t]*=")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_crontab(data: bytes, file: str) -> str:
    """Return the text of the crontab ``file``; bytes that are not UTF-8 are kept as lone surrogates.

    Raises ValueError, in a sentence, for a file that is too large, is UTF-16, has the line ends of old Macs,
    or is an anacrontab.
    """
    if len(data) > LARGEST_FILE:
        raise ValueError(f"{file} has more than 4 MiB; it is no crontab.")
    if data.startswith(_UTF_16) or data.count(0) > len(data) // 4:
        raise ValueError(
            f"{file} is text in UTF-16, and a crontab is UTF-8: convert it with iconv -f UTF-16 -t UTF-8."
        )
    lines = data.replace(b"\r\n", b"\n")
    if b"\n" not in lines and b"\r" in lines.removesuffix(b"\r"):
        raise ValueError(
            f"{file} has a carriage return alone at its line ends, as old Macs wrote them: convert it "
            "with tr '\\r' '\\n'."
        )
    text = data.decode("utf-8", "surrogateescape")
    _check_is_no_anacrontab(text, file)
    return text


def _check_is_no_anacrontab(text: str, file: str) -> None:
    """Raise ValueError, in a sentence, where the text of ``file`` is an anacrontab: each line of it is."""
    lines = [(number, line.strip(" \t\r")) for number, line in enumerate(text.split("\n"), start=1)]
    jobs = [(number, line) for number, line in lines if line and not _ASIDE.match(line)]
    if jobs and all(is_of_anacron(line) for _, line in jobs):
        raise ValueError(
            f"{file} is an anacrontab, no crontab: line {jobs[0][0]} has a period, a delay, a name and a "
            "command. Leave it to anacron, or write its commands as lines of a crontab, such as "
            "'30 4 * * * COMMAND'."
        )


def is_of_anacron(line: str) -> bool:
    """Return whether ``line`` is one of an anacrontab."""
    return _ANACRON.fullmatch(line) is not None
