"""The name of a schedule that was a line of a crontab: from the comment above it, else its command. Pure.

A name is shown on pages to everybody. So it has no options, assignments or numbers: those may be secrets.
"""

from __future__ import annotations

import itertools
import re
import unicodedata

LONGEST = 50
MOST_WORDS = 6
# A comment names its line where it is one phrase of plain words, which Ansible and Puppet write, too.
_AUTHORED = re.compile(r"(?:ansible|puppet name)\s*:\s*", re.IGNORECASE)
_PHRASE = re.compile(r"[^\W\d_][\w ,.'/()&-]*[.:!]?")
# What the system's own files say above their first line, and programs that write crontabs.
_HEADING = re.compile(
    r"m\s+h\b|min(?:ute)?s?\s+hours?\b|.*\b(?:dom|dow)\b|.*command to be executed|do not edit|edit this file",
    re.IGNORECASE,
)
# What says where, when or as whom a command runs, not what it is. Several may stand one behind the other.
_IN_ANY_FOLDER = r"(?:/[^\s;&|]*/)?"
_OPTIONS = r"(?:-[^\s;&|]+\s+(?:\d[\w.]*\s+)?)*"
_LEAD_IN = re.compile(
    rf"""(?:
        cd\s+\S+\s*(?:&&|;)
      | [A-Za-z_]\w*=(?:"[^"]*"|'[^']*'|[^\s"']*)(?=\s)
      | (?:if\s+)?(?:!\s*)?{_IN_ANY_FOLDER}(?:test|\[\[?)\s[^;&|]*(?:&&|\|\||;)
      | (?:if\s+)?(?:!\s*)?(?:command\s+-v|type|{_IN_ANY_FOLDER}(?:which|pgrep|pidof))\s[^;&|]*(?:&&|\|\||;)
      | (?:\.|source)\s+\S+\s*(?:&&|;)
      | {_IN_ANY_FOLDER}sleep\s[^;&|]*(?:&&|;)
      | {_IN_ANY_FOLDER}perl\s+-e\s+'[^']*'\s*(?:&&|;)
      | {_IN_ANY_FOLDER}flock\s+{_OPTIONS}[^\s;&|]+\s+(?:-c\s+)?
      | {_IN_ANY_FOLDER}timeout\s+{_OPTIONS}\d[\w.]*\s+
      | {_IN_ANY_FOLDER}(?:nice|ionice|chrt)\s+{_OPTIONS}
      | {_IN_ANY_FOLDER}sudo\s+(?:-[ugU]\s*[^\s;&|]+\s+|-[^\s;&|]+\s+)*
      | {_IN_ANY_FOLDER}env\s+(?:-[^\s;&|]+\s+)*
      | {_IN_ANY_FOLDER}(?:ba|da|k|z)?sh\s+(?:-\w+\s+)*-\w*c\s+
      | {_IN_ANY_FOLDER}python[\d.]*\s+(?:-[A-Za-ln-z]\w*\s+)*-m\s+
      | (?:exec|if|then|{_IN_ANY_FOLDER}(?:nohup|setsid|time|chronic))\s
      | [(){{}}"'!]
    )\s*""",
    re.VERBOSE,
)
_END = re.compile(r"[;&|<>]")
# The shape of a command's first and second word that may show in a name.
_SHOWN = (re.compile(r"[\w./~$\"'{][^=@]*"), re.compile(r"[A-Za-z./~][A-Za-z./_:-]*"))


def name_of(command: str, comment: str | None = None) -> str:
    """Return ``nightly-dump`` for a command under the comment ``# Nightly dump``: 1 to 50 of a-z, 0-9, _, -.

    Without a comment that is a phrase it is the program's name and what follows it, if that is a word.
    """
    return (comment and _of_comment(comment)) or _of_command(command) or "command"


def _of_comment(comment: str) -> str | None:
    text = _AUTHORED.sub("", comment.strip("#*=- \t"), count=1).strip()
    if not _PHRASE.fullmatch(text) or _HEADING.match(text):
        return None
    words = [word for word in text.split() if not any(c.isdigit() for c in word)]
    slug = _slug(" ".join(words[:MOST_WORDS]))
    return slug if len(slug) > 2 else None


def _of_command(command: str) -> str:
    rest = command
    while lead_in := _LEAD_IN.match(rest):
        rest = rest[lead_in.end() :]
    words = [word.rstrip("\"')") for word in _END.split(rest.strip() or command)[0].split()]
    # Each line of Debian's own file is a run-parts of some folder.
    words = [word for word in words if word != "--report"]
    shown = itertools.takewhile(lambda pair: pair[0].fullmatch(pair[1]), zip(_SHOWN, words, strict=False))
    return _slug("-".join(word.rstrip("/").rpartition("/")[2] for _, word in shown))


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_]+", "-", plain)[:LONGEST].strip("-_")
