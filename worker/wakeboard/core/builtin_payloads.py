"""The payloads of the built-in job types ``command`` and ``http``, and the check of each field.

Pure. The form of a schedule and the handler use the same checks, so what is accepted can be followed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from wakeboard.core.outcome import Permanent
from wakeboard.core.process.os_user import is_user_name

Instructions = Mapping[str, Any]

COMMAND_TYPE, HTTP_TYPE = "command", "http"
# ``command:www-data`` is a command of the OS user www-data, ``command`` alone one of the worker's own user.
USER_PREFIX = f"{COMMAND_TYPE}:"

COMMAND_FIELDS = ("argv", "env", "stdin", "cwd", "ok_codes")
HTTP_FIELDS = ("url", "method", "headers", "body", "json")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
SCHEMES = ("http", "https")
LARGEST_EXIT_CODE = 255
# A name as RFC 9110 has it.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def is_builtin(job_type: str) -> bool:
    """Return whether runs of ``job_type`` do what their definition says, which each reads when it starts."""
    return job_type == HTTP_TYPE or is_command(job_type)


def is_command(job_type: str) -> bool:
    """Return whether runs of ``job_type`` are programs: ``command``, or ``command:`` and an OS user."""
    return job_type == COMMAND_TYPE or job_type.startswith(USER_PREFIX)


def command_type(user: str) -> str:
    """Return the job type of the commands of the OS user ``user``."""
    return f"{USER_PREFIX}{user}"


def command_user(job_type: str) -> str | None:
    """Return the OS user whose commands ``job_type`` runs, None for a type that names none."""
    return job_type.removeprefix(USER_PREFIX) if job_type.startswith(USER_PREFIX) else None


def workers_for(users: Sequence[str]) -> str:
    """Return which worker runs the commands of ``users``, to follow "start"."""
    others = [user for user in users if user != "root"]
    if not others:
        return "a worker as root"
    as_root = f"a worker as root with WAKEBOARD_RUN_AS_USERS={','.join(others)}"
    if len(others) < len(users):
        return as_root
    return f"a worker as {'that user' if len(users) == 1 else 'each of these users'}, or {as_root}"


def no_worker_for(user: str) -> str:
    """Return the sentence that nobody runs the commands of ``user``, and who would."""
    return f"No live worker runs commands as {user}: start {workers_for([user])}."


def check_user(user: str) -> None:
    """Raise Permanent when ``user`` cannot be the name of an OS user."""
    if not is_user_name(user):
        raise Permanent(
            "user_unknown",
            f"'{user[:40]}' is not the name of an OS user: a type such as '{command_type('www-data')}' has "
            "a name behind the colon, not a number.",
        )


def payload_error(fault: str) -> Permanent:
    """Return the error for instructions that cannot be followed; ``fault`` says why."""
    return Permanent("instructions_unreadable", f"The instructions cannot be followed: {fault}.")


def check(job_type: str, payload: object) -> None:
    """Raise Permanent when a run of a built-in type could not follow ``payload``; others are not checked."""
    if is_command(job_type):
        if (user := command_user(job_type)) is not None:
            check_user(user)
        instructions = check_fields(payload, COMMAND_FIELDS)
        argv_of(instructions)
        ok_codes_of(instructions)
        texts_of(instructions, "env")
        for name in ("stdin", "cwd"):
            text_of(instructions, name)
    elif job_type == HTTP_TYPE:
        instructions = check_fields(payload, HTTP_FIELDS)
        url_of(instructions)
        method_of(instructions)
        body_of(instructions)
        check_headers(texts_of(instructions, "headers"))


def check_fields(payload: object, allowed: tuple[str, ...]) -> Instructions:
    """Return ``payload`` when it is an object of ``allowed`` fields. Raises Permanent."""
    if not isinstance(payload, Mapping):
        raise payload_error(f"the instructions are {type(payload).__name__}, not a JSON object")
    if unknown := sorted(set(payload) - set(allowed)):
        raise payload_error(f"'{unknown[0]}' is not known; allowed: {', '.join(allowed)}")
    return payload


def text_of(instructions: Instructions, name: str, default: str | None = None) -> str | None:
    """Return the text in field ``name``. Raises Permanent when it is something else or holds a NUL."""
    value = instructions.get(name, default)
    if value is not None and (not isinstance(value, str) or "\x00" in value):
        raise payload_error(f"'{name}' must be text")
    return value


def texts_of(instructions: Instructions, name: str) -> dict[str, str]:
    """Return the object of texts in field ``name``, empty when it is missing. Raises Permanent."""
    value = instructions.get(name) or {}
    if not isinstance(value, Mapping) or not all(
        isinstance(text, str) and "\x00" not in key + text for key, text in value.items()
    ):
        raise payload_error(f"'{name}' must be an object of texts")
    return dict(value)


def argv_of(instructions: Instructions) -> list[str]:
    """Return the program and its arguments. Raises Permanent."""
    argv = instructions.get("argv")
    if not isinstance(argv, list) or not argv or not argv[0]:
        raise payload_error('\'argv\' must be a list of texts, such as ["/usr/bin/backup", "--all"]')
    if not all(isinstance(word, str) and "\x00" not in word for word in argv):
        raise payload_error("every word of 'argv' must be text")
    return argv


def ok_codes_of(instructions: Instructions) -> list[int]:
    """Return the exit codes that count as success, by default [0]. Raises Permanent."""
    codes = instructions.get("ok_codes", [0])
    if not isinstance(codes, list) or not codes or not all(_is_exit_code(code) for code in codes):
        raise payload_error(
            f"'ok_codes' must be a list of exit codes from 0 to {LARGEST_EXIT_CODE}, such as [0, 1]"
        )
    return codes


def _is_exit_code(code: object) -> bool:
    return isinstance(code, int) and not isinstance(code, bool) and 0 <= code <= LARGEST_EXIT_CODE


def url_of(instructions: Instructions) -> str:
    """Return the address of a request. Raises Permanent."""
    url = text_of(instructions, "url") or ""
    try:
        parts = urlsplit(url)
        allowed = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        allowed = False
    if not allowed or not url.isascii() or any(c <= " " or c == "\x7f" for c in url):
        raise payload_error("'url' must be an address such as https://example.com/hook, http or https")
    return url


def method_of(instructions: Instructions) -> str:
    """Return the method of a request; by default POST with a body, else GET.

    As curl does: a server may ignore the body of a GET, and answer well. Raises Permanent.
    """
    has_body = "json" in instructions or instructions.get("body") is not None
    method = (text_of(instructions, "method") or ("POST" if has_body else "GET")).upper()
    if method not in METHODS:
        raise payload_error(f"the method is '{method[:20]}'; allowed: {', '.join(METHODS)}")
    return method


def body_of(instructions: Instructions) -> tuple[bytes | None, str]:
    """Return the body of a request, None for none, and its content type. Raises Permanent."""
    body = text_of(instructions, "body")
    if "json" in instructions:
        if body is not None:
            raise payload_error("give 'json' or 'body', not both")
        return json.dumps(instructions["json"]).encode(), "application/json"
    return (None if body is None else body.encode("utf-8", "replace")), "text/plain; charset=utf-8"


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise Permanent when a header would break out of its line, or cannot be sent at all."""
    if any(c < " " or c == "\x7f" for name, value in headers.items() for c in name + value):
        raise payload_error("a header holds a line break or another control character")
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise payload_error(f"'{name[:40]}' cannot be the name of a header: letters, digits and - only")
        if any(ord(c) > 0xFF for c in value):
            raise payload_error(f"the header '{name[:40]}' holds a character beyond Latin-1; encode it")
