"""The command of a crontab line: the name of its schedule, its ordinary exit code, its systemd unit. Pure.

The name is public. So it has no options, assignments or numbers, which may be secrets. It comes from the
comment above the line, else from the command.

Cron ignores exit codes. So lines are common that end with another code than 0 although all is well: a test in
front, a lock that is taken, a search that finds nothing. Only the programs that decide the exit code of the
whole line are examined.
"""

from __future__ import annotations

import itertools
import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LONGEST_NAME = 50
MOST_WORDS = 6
# A comment names its line where it is one phrase of plain words; Ansible and Puppet write such comments.
_TOOL_PREFIX = re.compile(r"(?:ansible|puppet name)\s*:\s*", re.IGNORECASE)
_PHRASE = re.compile(r"[^\W\d_][\w ,.'/()&-]*[.:!]?")
# Headings of the system's own files, and of programs that write crontabs.
_HEADING = re.compile(
    r"m\s+h\b|min(?:ute)?s?\s+hours?\b|.*\b(?:dom|dow)\b|.*command to be executed|do not edit|edit this file",
    re.IGNORECASE,
)
# What says where, when or as whom a command runs, not what it is. Several may follow each other.
_FOLDER = r"(?:/[^\s;&|]*/)?"
_OPTIONS = r"(?:-[^\s;&|]+\s+(?:\d[\w.]*\s+)?)*"
_LEAD_IN = re.compile(
    rf"""(?:
        cd\s+\S+\s*(?:&&|;)
      | [A-Za-z_]\w*=(?:"[^"]*"|'[^']*'|[^\s"']*)(?=\s)
      | (?:if\s+)?(?:!\s*)?{_FOLDER}(?:test|\[\[?)\s[^;&|]*(?:&&|\|\||;)
      | (?:if\s+)?(?:!\s*)?(?:command\s+-v|type|{_FOLDER}(?:which|pgrep|pidof))\s[^;&|]*(?:&&|\|\||;)
      | (?:\.|source)\s+\S+\s*(?:&&|;)
      | {_FOLDER}sleep\s[^;&|]*(?:&&|;)
      | {_FOLDER}perl\s+-e\s+'[^']*'\s*(?:&&|;)
      | {_FOLDER}flock\s+{_OPTIONS}[^\s;&|]+\s+(?:-c\s+)?
      | {_FOLDER}timeout\s+{_OPTIONS}\d[\w.]*\s+
      | {_FOLDER}(?:nice|ionice|chrt)\s+{_OPTIONS}
      | {_FOLDER}sudo\s+(?:-[ugU]\s*[^\s;&|]+\s+|-[^\s;&|]+\s+)*
      | {_FOLDER}env\s+(?:-[^\s;&|]+\s+)*
      | {_FOLDER}(?:ba|da|k|z)?sh\s+(?:-\w+\s+)*-\w*c\s+
      | {_FOLDER}python[\d.]*\s+(?:-[A-Za-ln-z]\w*\s+)*-m\s+
      | (?:exec|if|then|{_FOLDER}(?:nohup|setsid|time|chronic))\s
      | [(){{}}"'!]
    )\s*""",
    re.VERBOSE,
)
_END = re.compile(r"[;&|<>]")
# The shape of a command's first and second word that may be part of a name.
_NAME_WORDS = (re.compile(r"[\w./~$\"'{][^=@]*"), re.compile(r"[A-Za-z./~][A-Za-z./_:-]*"))

_TEST = "its test is not true"
_SEARCH = "it finds nothing"
_REASONS = {
    **dict.fromkeys(("test", "[", "[["), _TEST),
    **dict.fromkeys(("grep", "egrep", "fgrep", "zgrep"), _SEARCH),
    **dict.fromkeys(("diff", "cmp"), "it finds a difference"),
    **dict.fromkeys(("pgrep", "pkill", "pidof"), "no such process runs"),
}
_FLOCK, _TIMEOUT = "another holds the lock", "the time is over"
# These run the command that follows their options.
_WRAPPERS = frozenset({"nice", "ionice", "env", "sudo", "nohup", "setsid", "exec", "time", "chronic"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_ENDS = frozenset({";", "&", "\n"})
_COMPOUND = frozenset({"if", "while", "until", "for", "case"})

_UNIT = """\
# /etc/systemd/system/{name}.service
[Unit]
Description={name}
After=network.target

[Service]
Type=exec
User={user}
WorkingDirectory=-~
{environment}
ExecStart={command}{stdin}
RemainAfterExit=yes

[Install]
WantedBy=multi-user.target
"""


def name_of(command: str, comment: str | None = None) -> str:
    """Return ``nightly-dump`` for a command under the comment ``# Nightly dump``: 1 to 50 of a-z, 0-9, _, -.

    Without a comment that is a phrase it is the program's name and what follows it, if that is a word.
    """
    return (comment and _name_from_comment(comment)) or _name_from_command(command) or "command"


def _name_from_comment(comment: str) -> str | None:
    text = _TOOL_PREFIX.sub("", comment.strip("#*=- \t"), count=1).strip()
    if not _PHRASE.fullmatch(text) or _HEADING.match(text):
        return None
    words = [word for word in text.split() if not any(c.isdigit() for c in word)]
    slug = _slug(" ".join(words[:MOST_WORDS]))
    return slug if len(slug) > 2 else None


def _name_from_command(command: str) -> str:
    rest = command
    while lead_in := _LEAD_IN.match(rest):
        rest = rest[lead_in.end() :]
    words = [word.rstrip("\"')") for word in _END.split(rest.strip() or command)[0].split()]
    # Each line of Debian's own file is a run-parts of some folder.
    words = [word for word in words if word != "--report"]
    parts = itertools.takewhile(
        lambda pair: pair[0].fullmatch(pair[1]), zip(_NAME_WORDS, words, strict=False)
    )
    return _slug("-".join(word.rstrip("/").rpartition("/")[2] for _, word in parts))


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_]+", "-", plain)[:LONGEST_NAME].strip("-_")


@dataclass(frozen=True, slots=True)
class OrdinaryExit:
    """The line ends with ``code``, as ``program`` does when ``why``."""

    program: str
    code: int
    why: str


def ordinary_exit(command: str) -> OrdinaryExit | None:
    """Return why ``command`` may end with another exit code than 0 although all is well, else None."""
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        words = list(lexer)
    except ValueError:
        return None
    exits = map(_exit_of_program, _deciding_programs(words))
    return next((each for each in exits if each is not None), None)


def _deciding_programs(words: Sequence[str]) -> list[list[str]]:
    """Return the programs whose exit code is that of the whole: of the last list those that no ``||``
    follows, and of a pipeline the last."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("(", ")", "{", "}"):
            continue
        if word in _COMPOUND and not parts[-1]:
            # A compound command ends with 0; only what comes before it with && counts.
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


def _exit_of_program(words: Sequence[str]) -> OrdinaryExit | None:
    timeout: OrdinaryExit | None = None
    while words := _without_wrappers(list(words)):
        program, rest = words[0].rpartition("/")[2], words[1:]
        if program == "timeout":
            timeout = OrdinaryExit(program, 124, _TIMEOUT)
            words = _command_of_timeout(rest)
            continue
        if program in _REASONS:
            return OrdinaryExit(program, 1, _REASONS[program])
        if program == "flock" and (code := _code_of_flock(rest)):
            return OrdinaryExit(program, code, _FLOCK)
        if program in _SHELLS and "-c" in rest[:-1]:
            return ordinary_exit(rest[rest.index("-c") + 1]) or timeout
        break
    return timeout


def _without_wrappers(words: list[str]) -> list[str]:
    while words:
        name = words[0].rpartition("/")[2]
        if name not in _WRAPPERS and ("=" not in name or name.startswith("=")):
            break
        words = words[1:]
        while name in _WRAPPERS and words and words[0].startswith("-"):
            takes_value = words[0] in ("-n", "-c", "-u", "-g")
            words = words[2:] if takes_value else words[1:]
    return words


def _command_of_timeout(rest: Sequence[str]) -> list[str]:
    """Return the command that ``timeout`` runs; it follows the duration, which is the first non-option."""
    words = list(rest)
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in ("-k", "-s", "--kill-after", "--signal") else words[1:]
    return words[1:]


def _code_of_flock(rest: Sequence[str]) -> int | None:
    """Return the exit code of a ``flock`` that stops waiting, None for one that waits for ever."""
    options = [word for word in rest if word.startswith("-")]
    waits = not any(
        word in ("--nonblock", "--nb", "--timeout", "--wait")
        or (word[1:2] != "-" and set(word[1:]) & set("nw"))
        for word in options
    )
    if waits:
        return None
    for word, value in itertools.pairwise(rest):
        if word in ("-E", "--conflict-exit-code") and value.isdigit():
            return int(value) or None
    return 1


def systemd_unit(
    name: str, user: str, argv: Sequence[str], env: Mapping[str, str], stdin: str | None = None
) -> str:
    """Return the text of the unit ``name``: it runs ``argv`` once as ``user`` when the machine starts.

    It counts as active when the command has ended, so that what the command left running stays.
    """
    data = "" if not stdin else f"\nStandardInput=data\nStandardInputText={_escape_input(stdin)}"
    return _UNIT.format(
        name=name,
        user=user,
        environment="Environment=" + " ".join(_quote(f"{name}={value}") for name, value in env.items()),
        command=" ".join(_quote(word).replace("$", "$$") for word in argv),
        stdin=data,
    )


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\t", "\\t")
    return f'"{escaped}"'


def _escape_input(text: str) -> str:
    # systemd adds the last line end itself, and drops white space at the beginning.
    lines = text.removesuffix("\n").replace("\\", "\\\\").replace("%", "%%").replace("\n", "\\n")
    return f"\\x20{lines[1:]}" if lines.startswith(" ") else lines
