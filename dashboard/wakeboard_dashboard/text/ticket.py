"""A run to share: Markdown for a ticket, commands for a terminal. Pure.

Foreign text is inline code or a block of code: in a ticket it must not be markup, a link or a mention.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from shlex import quote

from wakeboard.core.text.redaction import redact, redact_text
from wakeboard_dashboard.text.formats import Row, between, utc, visible

# In characters; people read the start of each.
LONGEST_ERROR = 2_000
LONGEST_TRACE = 4_000
LONGEST_PAYLOAD = 2_000
MOST_ATTEMPTS = 10


def markdown(run: Row, ended: Sequence[Row], sentences: Sequence[str], address: str) -> str:
    """Return run ``run`` as Markdown: how it stands, why, what failed, its newest attempts, where it is.

    ``run``: a row of job_runs with most_attempts and definition; ``ended``: its attempts, newest first;
    ``sentences``: why it waits; ``address``: of its page.
    """
    lines = [f"### Run {run['id']}: {code(run['job_type'])} is {run['status']}", ""]
    lines += [f"- {part}" for part in _facts(run, address)]
    lines += [f"- {code(sentence)}" for sentence in sentences]
    if run["last_error"] and run["status"] in ("failed", "dead"):
        lines += ["", "Last error:", "", block(redact_text(run["last_error"]), LONGEST_ERROR)]
    trace = next((row["traceback"] for row in ended if row["traceback"]), None)
    if trace:
        lines += ["", "Newest trace:", "", block(redact_text(trace), LONGEST_TRACE)]
    if ended:
        lines += ["", *_attempts(ended)]
    return "\n".join(lines) + "\n"


def _facts(run: Row, address: str) -> list[str]:
    """Return what the run is, one phrase a line."""
    facts = [
        f"page: {address}",
        f"{run['attempts']} starts, {run['failures']} of {run['most_attempts']} failures",
    ]
    facts += [f"error code: {code(run['error_code'])}"] if run["error_code"] else []
    facts += [f"schedule: {code(run['definition'])}"] if run["definition"] else []
    facts += [f"key: {code(run['idempotency_key'])}"] if run["idempotency_key"] else []
    facts.append(f"enqueued: {utc(run['created_at'])}{_by(run['enqueued_by'])}")
    for name, word in (("started_at", "last start"), ("finished_at", "ended")):
        facts += [f"{word}: {utc(run[name])}"] if run[name] else []
    facts += [f"next: {utc(run['run_at'])}"] if run["status"] in ("queued", "failed") else []
    return facts


def _by(who: str | None) -> str:
    return f" by {code(who)}" if who else ""


def _attempts(ended: Sequence[Row]) -> list[str]:
    """Return the newest attempts as a table, the newest first."""
    lines = ["| attempt | outcome | started | took | worker | error |", "|---|---|---|---|---|---|"]
    for row in ended[:MOST_ATTEMPTS]:
        took = between(row["started_at"], row["finished_at"])
        error = code(row["error_code"], in_table=True) if row["error_code"] else ""
        worker = code(row["worker_name"] or row["worker_id"], in_table=True)
        cells = (row["attempt"], row["outcome"], utc(row["started_at"]), took, worker, error)
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    more = len(ended) - MOST_ATTEMPTS
    return lines + ([f"| | and {more} before | | | | |"] if more > 0 else [])


def code(text: str, *, in_table: bool = False) -> str:
    """Return one line of foreign ``text`` as inline code, behind a fence longer than any inside."""
    line = " ".join(visible(text).split()) or " "
    if in_table:
        # Inside of code a backslash is a backslash, but for this one.
        line = line.replace("|", "\\|")
    fence = "`" * (_longest_run(line) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def block(text: str, longest: int) -> str:
    """Return foreign ``text`` as a block of code, cut after ``longest`` characters."""
    shown = visible(text)
    shown = shown if len(shown) <= longest else f"{shown[:longest]}…"
    fence = "`" * max(3, _longest_run(shown) + 1)
    return f"{fence}text\n{shown}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(found) for found in re.findall("`+", text)), default=0)


def commands(run: Row, address: str, verbs: Sequence[str]) -> list[tuple[str, str]]:
    """Return (label, command) for a terminal, one command each: whoever pastes one must not run the next.

    ``verbs``: the names of those that the state allows. curl reads its token from WAKEBOARD_TOKEN.
    """
    curl = 'curl -sS -H "Authorization: Bearer $WAKEBOARD_TOKEN"'
    found = [("Show", f"wakeboard run {run['id']}"), ("Show by curl", f"{curl} {quote(f'{address}.json')}")]
    for verb in verbs:
        found.append((verb.capitalize(), f"wakeboard {verb} {run['id']}"))
        asked = f'{curl} -H "Accept: application/json" -X POST {quote(f"{address}/{verb}")}'
        found.append((f"{verb.capitalize()} by curl", asked))
    same = enqueue_command(run)
    return [*found, ("Enqueue the same", same)] if same else found


def enqueue_command(run: Row) -> str | None:
    """Return the command that enqueues the same again; None when the payload is long or hides secrets."""
    payload = run["payload"]
    text = json.dumps(payload, ensure_ascii=False, default=str)
    if payload is None or len(text) > LONGEST_PAYLOAD or not text.isprintable() or redact(payload) != payload:
        return None
    words = ["wakeboard", "enqueue"]
    words += ["--payload", quote(text)] if payload else []
    words += ["--priority", str(run["priority"])] if run["priority"] != 2 else []
    words += ["--"] if run["job_type"].startswith("-") else []
    return " ".join([*words, quote(run["job_type"])])
