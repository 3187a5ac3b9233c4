"""Which lines of a crontab end with another exit code than 0 although all is well. Pure.

Cron does not look at a command's exit code, so such lines are common: a test in front, a lock that is taken,
a search that finds nothing. Only what decides the exit code of the whole line is looked at.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_TEST = "its test is not true"
_SEARCH = "it finds nothing"
_REASONS = {
    **dict.fromkeys(("test", "[", "[["), _TEST),
    **dict.fromkeys(("grep", "egrep", "fgrep", "zgrep"), _SEARCH),
    **dict.fromkeys(("diff", "cmp"), "it finds a difference"),
    **dict.fromkeys(("pgrep", "pkill", "pidof"), "no such process runs"),
}
_FLOCK, _TIMEOUT = "another holds the lock", "the time is over"
# These run the command behind their options.
_WRAPPERS = frozenset({"nice", "ionice", "env", "sudo", "nohup", "setsid", "exec", "time", "chronic"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_ENDS = frozenset({";", "&", "\n"})
_COMPOUND = frozenset({"if", "while", "until", "for", "case"})


@dataclass(frozen=True, slots=True)
class OrdinaryExit:
    """``program`` ends with ``code`` when ``why``, and so does the line."""

    program: str
    code: int
    why: str


def ordinary_exit(command: str) -> OrdinaryExit | None:
    """Return why ``command`` may end with another exit code than 0 although all is well, None where it is not
    known to."""
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        words = list(lexer)
    except ValueError:
        return None
    return next((found for part in _deciding(words) if (found := _of_program(part))), None)


def _deciding(words: Sequence[str]) -> list[list[str]]:
    """Return the programs whose exit code is that of the whole: in the last list those that no ``||``
    follows, and of a pipeline the last."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("(", ")", "{", "}"):
            continue
        if word in _COMPOUND and not parts[-1]:
            # What it tests and does ends well; only what stands before it with && counts.
            break
        if word in _ENDS or word == "||":
            parts = [[]]
        elif word == "&&":
            parts.append([])
        elif word in ("|", "|&"):
            parts[-1] = []
        else:
            parts[-1].append(word)
    return [part for part in parts if part]


def _of_program(words: Sequence[str]) -> OrdinaryExit | None:
    late: OrdinaryExit | None = None
    while words := _unwrapped(list(words)):
        program, rest = words[0].rpartition("/")[2], words[1:]
        if program == "timeout":
            late = OrdinaryExit(program, 124, _TIMEOUT)
            words = _behind_duration(rest)
            continue
        if program in _REASONS:
            return OrdinaryExit(program, 1, _REASONS[program])
        if program == "flock" and (code := _code_of_flock(rest)):
            return OrdinaryExit(program, code, _FLOCK)
        if program in _SHELLS and "-c" in rest[:-1]:
            return ordinary_exit(rest[rest.index("-c") + 1]) or late
        break
    return late


def _unwrapped(words: list[str]) -> list[str]:
    while words:
        name = words[0].rpartition("/")[2]
        if name not in _WRAPPERS and ("=" not in name or name.startswith("=")):
            break
        words = words[1:]
        while name in _WRAPPERS and words and words[0].startswith("-"):
            takes_value = words[0] in ("-n", "-c", "-u", "-g")
            words = words[2:] if takes_value else words[1:]
    return words


def _behind_duration(rest: Sequence[str]) -> list[str]:
    """Return the command that ``timeout`` runs: it follows the duration, which is the first that is no
    option."""
    words = list(rest)
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in ("-k", "-s", "--kill-after", "--signal") else words[1:]
    return words[1:]


def _code_of_flock(rest: Sequence[str]) -> int | None:
    """Return the exit code of a ``flock`` that does not wait for ever, None for one that does."""
    options = [word for word in rest if word.startswith("-")]
    waits = not any(
        word in ("--nonblock", "--nb", "--timeout", "--wait")
        or (word[1:2] != "-" and set(word[1:]) & set("nw"))
        for word in options
    )
    if waits:
        return None
    for at, word in enumerate(rest[:-1]):
        if word in ("-E", "--conflict-exit-code") and rest[at + 1].isdigit():
            return int(rest[at + 1]) or None
    return 1
