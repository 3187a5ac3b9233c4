"""Rows of every kind in every table, with texts that somebody else chose, and the addresses that show them.

A page that a test here does not know yet fails it with what to add: ARGUMENTS for a new kind of address.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from flask import Flask

from tests.conftest import Connection
from tests.support.factories import (
    a_definition,
    a_group,
    a_run,
    a_type,
    a_worker,
    an_attempt,
    from_now,
    insert,
)

# Gives a text of at most so many characters.
Text = Callable[[int], str]
STATES = ("queued", "running", "succeeded", "failed", "dead", "cancelled")
COUNTED = {
    "duration_bucket": 50, "wait_bucket": 20, "runs": 9, "duration_ms": 300_000, "duration_max_ms": 50_000,
    "wait_ms": 1, "wait_max_ms": 1,
}  # fmt: skip
# Not pages of this house's rows: what is static, asks without a session, or belongs to the example shop.
APART = re.compile(r"^/(_fragments/)?(static|demo)\b|^/(healthz|readyz|statusz|metrics|login|logout)$")
LONGEST = 10_000


@dataclass
class Filling:
    """What stands in addresses: the values of each argument, by the start of the path."""

    arguments: dict[str, list[str]] = field(default_factory=dict)

    def of(self, rule: str, name: str) -> list[str]:
        """Return the values of argument ``name`` of a rule. Raises KeyError with what to do."""
        noun = rule.removeprefix("/_fragments").split("/")[1]
        for key in (f"{noun} {name}", name):
            if key in self.arguments:
                return self.arguments[key]
        raise KeyError(f"{rule}: say in tests/support/every_page.py what stands for <{name}>.")


def furnish(connection: Connection, any_text: Text, plain: Text) -> Filling:
    """Write rows of every kind, a worker among them that stays alive for as long as any test.

    Every text column that somebody outside can write is filled by ``any_text``, or ``plain`` where the table
    refuses control characters.
    """
    kinds = [plain(200), plain(200)]
    for name in kinds:
        a_type(
            connection, name, paused_at=from_now("-1 hour"), paused_by=any_text(LONGEST),
            paused_reason=any_text(LONGEST), backoff=any_text(300), schedule=any_text(100), max_running=2,
        )  # fmt: skip
    workers = [
        a_worker(
            connection, any_text(200), seen=seen, name=any_text(300), hostname=any_text(300),
            version=any_text(100), job_types=[*kinds, plain(200)],
        )
        for seen in ("1 hour", "-1 hour")
    ]  # fmt: skip
    definitions = [
        a_definition(connection, "nightly", job_type=kinds[0], payload={any_text(300): any_text(LONGEST)}),
        a_definition(
            connection, "broken", job_type=kinds[1], schedule=any_text(300), timezone=any_text(300),
            error=any_text(LONGEST),
        ),
    ]  # fmt: skip
    runs = _runs(connection, kinds, workers, definitions, any_text)
    _surroundings(connection, runs, kinds, definitions, any_text)
    people = _records(connection, runs, kinds, any_text)
    return Filling(
        {
            "run_id": [str(run) for run in runs],
            "lease_epoch": ["2"],
            "code": [_error_codes(connection)[0]],
            "schedules name": ["nightly", "broken"],
            "types name": kinds[:1],
            "workers name": workers[:1],
            "effect_id": ["1"],
            "verb": ["retry", "cancel", "again"],
            **people,
        }
    )


def _runs(
    connection: Connection, kinds: list[str], workers: list[str], definitions: list[int], text: Text
) -> list[int]:
    """Write a run of every state with an attempt of every outcome behind it."""
    found = []
    for place, state in enumerate((*STATES, "running")):
        held = {"locked_by": workers[place == 6], "locked_until": "10 minutes"} if state == "running" else {}
        failed = {"error_code": text(LONGEST), "last_error": text(LONGEST)}
        run = a_run(
            connection, state, job_type=kinds[place % 2], attempts=1, lease_epoch=7,
            payload={text(300): [text(LONGEST), {text(300): text(200)}], "token": text(300)},
            idempotency_key=text(200), enqueued_by=text(200), traceparent=text(200),
            definition_id=definitions[place % 2], scheduled_for=f"2026-11-{place + 10}T02:00:00Z",
            progress_done=3, progress_total=9, **({} if state == "queued" else failed), **held,
        )  # fmt: skip
        found.append(run)
        for epoch, outcome in enumerate(("failed", "timed_out", "lost", "cancelled", "released"), 2):
            an_attempt(
                connection, run, attempt=epoch, lease_epoch=epoch, job_type=kinds[place % 2], outcome=outcome,
                worker_id=workers[0], error_code=text(200 if epoch == 2 else LONGEST), error=text(LONGEST),
                traceback=text(LONGEST), output_tail=text(LONGEST), result={text(300): text(LONGEST)},
                note=text(LONGEST), refused_at="-1 minute", refused_outcome=text(300), next_run_at="1 minute",
            )  # fmt: skip
    again = a_run(connection, job_type=kinds[0], origin_run_id=found[2], enqueued_by=text(200))
    made = a_run(connection, job_type=kinds[0], origin_run_id=found[2], enqueued_by=f"run:{found[2]}")
    return [*found, again, made]


def _surroundings(
    connection: Connection, runs: list[int], kinds: list[str], definitions: list[int], text: Text
) -> None:
    """Write what runs leave behind: effects, output, missed fires, statistics."""
    for place, status in enumerate(("started", "done", "started")):
        values = {
            "scope": text(300), "key": text(300), "run_id": runs[place], "attempt": 1, "lease_epoch": 1,
            "status": status, "result": {text(300): text(LONGEST)}, "settled_by": text(300),
        }  # fmt: skip
        insert(connection, "effects", values)
    insert(
        connection, "run_output", {"run_id": runs[1], "lease_epoch": 7, "tail": text(LONGEST)}, "run_id"
    )  # fmt: skip
    for place, reason in enumerate(("misfire", "overlap", "capped", "paused")):
        fire = {"definition_id": definitions[place % 2], "reason": reason}
        insert(connection, "missed_fires", fire | {"scheduled_for": from_now(f"-{place + 1} hours")})
    for table in ("statistics_rollups", "statistics_deltas"):
        for outcome in ("succeeded", "failed"):
            minute = {"minute": from_now("-20 minutes"), "job_type": kinds[0], "outcome": outcome}
            insert(connection, table, COUNTED | minute, "runs")


def _records(connection: Connection, runs: list[int], kinds: list[str], text: Text) -> dict[str, list[str]]:
    """Write what people and processes note down; return what stands in addresses."""
    for kind, target in (
        ("run", str(runs[0])), ("type", kinds[0]), ("schedule", "nightly"), ("worker", text(200)),
        (text(100), text(300)), ("run", text(100)),
    ):  # fmt: skip
        _audited(connection, kind, target, text)
    insert(
        connection, "loops",
        {"process_id": text(200), "name": text(100), "interval_seconds": 5, "last_error": text(LONGEST),
         "last_error_at": from_now("-1 minute"), "numbers": {text(100): text(LONGEST), "then_at": text(50)}},
        "name",
    )  # fmt: skip
    view = insert(
        connection, "saved_views",
        {"page": "runs", "name": text(300), "query": "status=dead", "created_by": text(300)},
    )  # fmt: skip
    rule = insert(
        connection, "alert_rules",
        {"name": text(300), "kind": "dead_runs", "state": "firing", "fired_at": from_now("-1 hour"),
         "checked_at": from_now("-1 minute"),
         "found": {"sentence": text(LONGEST), "error": text(LONGEST), "unit": text(50), "value": 3,
                   "limit": 1}},
    )  # fmt: skip
    insert(
        connection, "alert_messages",
        {"rule_id": rule, "kind": "firing", "channel": "mail", "subject": text(LONGEST), "tries": 2,
         "body": {"sentence": text(LONGEST), text(100): text(300)}, "error": text(LONGEST),
         "answer": text(LONGEST), "run_id": runs[0]},
    )  # fmt: skip
    code = text(200)
    group = a_group(
        connection, kinds[0], code, text(LONGEST), template=text(LONGEST),
        frame=text(300), muted_until="1 hour", muted_by=text(300), muted_reason=text(LONGEST),
    )  # fmt: skip
    _audited(connection, "error", f"{group:013x}", text)
    for table, which in (("job_runs", "id"), ("job_attempts", "outcome = 'failed' AND run_id")):
        connection.execute(
            f"UPDATE wakeboard.{table} SET error_code = %s, error_group = %s WHERE {which} = %s".encode(),
            (code, group, runs[STATES.index("dead")]),
        )
    operation = insert(
        connection, "operations",
        {"verb": "retry", "filter": {"q": text(300)}, "as_of": from_now("0 s"), "actor": text(300),
         "reason": text(LONGEST), "total": 9, "done": 3},
    )  # fmt: skip
    insert(
        connection, "operation_runs",
        {"operation_id": operation, "run_id": runs[0], "result": "skipped", "why": "gone"}, "run_id",
    )  # fmt: skip
    insert(
        connection, "tokens", {"name": text(300), "role": "viewer", "token_hash": "x", "created_by": text(99)}
    )
    connection.execute("UPDATE wakeboard.installation SET pinged_at = now(), ping_error = %s", (text(300),))
    return {
        "view_id": [str(view)], "rule_id": [str(rule)], "fingerprint": [f"{group:013x}"],
        "operation_id": [str(operation)],
    }  # fmt: skip


def _audited(connection: Connection, kind: str, target: str, text: Text) -> None:
    """Write a row of the audit log about one thing."""
    insert(
        connection, "audit_log",
        {"actor": text(300), "role": text(100), "source": text(100), "action": text(100),
         "target_type": kind, "target_id": target, "reason": text(LONGEST), "request_id": text(100),
         "before": {"status": text(300), text(100): text(LONGEST)},
         "after": {"status": text(300), text(100): text(LONGEST), "muted_reason": text(LONGEST)},
         "result": text(100), "ip": text(100)},
    )  # fmt: skip


def _error_codes(connection: Connection) -> list[str]:
    """Return the codes of the failures that were written here, the shortest first."""
    rows = connection.execute(
        """SELECT error_code FROM wakeboard.job_attempts WHERE error_code <> 'smtp_down'
        ORDER BY length(error_code), 1"""
    ).fetchall()
    return [row[0] for row in rows]


def addresses(app: Flask, filling: Filling) -> dict[str, list[str]]:
    """Return, by rule, the addresses of every page, fragment, twin and CSV that ``app`` serves on GET."""
    rules = [rule for rule in app.url_map.iter_rules() if "GET" in (rule.methods or ())]
    return {rule.rule: _fill(rule.rule, filling) for rule in rules if not APART.search(rule.rule)}


def acts(app: Flask, filling: Filling) -> dict[str, str]:
    """Return, by rule, an address of every verb that ``app`` takes by POST."""
    rules = [rule.rule for rule in app.url_map.iter_rules() if "POST" in (rule.methods or ())]
    found = {rule: _fill(rule, filling)[0] for rule in rules if not APART.search(rule)}
    # What one's own browser shows is nobody else's business.
    del found["/display"]
    return found


def _fill(rule: str, filling: Filling) -> list[str]:
    """Return the addresses of one rule: its things, each once; of several arguments the first of each."""
    names = re.findall(r"<(?:\w+:)?(\w+)>", rule)
    if rule in ("/runs/bulk/<verb>", "/runs/bulk/<verb>.json"):
        return [rule.replace("<verb>", verb) + "?since=24h" for verb in filling.of(rule, "verb")]
    if rule == "/runs/views/save":
        return ["/runs/views/save?query=status%3Ddead"]
    if rule.startswith("/night"):
        return [f"{rule}?since=24h"]
    if not names:
        return [rule]
    # What asks about a thing looks alike for all of them.
    given = filling.of(rule, names[0])
    given = given if len(names) == 1 and rule.endswith((">", ">.json")) else given[:1]
    found = [re.sub(r"<[^>]+>", quote(value, safe=""), rule, count=1) for value in given]
    for name in names[1:]:
        found = [
            re.sub(r"<[^>]+>", quote(filling.of(rule, name)[0], safe=""), each, count=1) for each in found
        ]
    return found


def plain_text(prefix: str = "w") -> Text:
    """Return a text that gives short distinct words: an ordinary house."""
    given = iter(range(10**9))
    return lambda most: f"{prefix}{next(given)}"[:most]


def is_page(rule: str) -> bool:
    """Whether a rule is a page that a person reads, and no fragment, twin, CSV or question of a verb."""
    return not rule.startswith("/_fragments") and not rule.endswith((".json", ".csv"))
