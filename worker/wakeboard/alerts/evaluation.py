"""Evaluates alert rules. Any number of processes may; a rule is evaluated by one of them at a time.

State, messages and the runs that deliver them are written in one transaction; nothing is sent here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import psycopg
from psycopg import Connection
from psycopg.rows import class_row

from wakeboard.alerts import report
from wakeboard.alerts.checks import check_rule
from wakeboard.alerts.finding import Finding
from wakeboard.alerts.messages import MessageText, Origin, to_jsonb, write_message
from wakeboard.alerts.rule_state import COLUMNS, AlertRule, next_state
from wakeboard.config import log
from wakeboard.config.settings import Settings
from wakeboard.core.rule_types import JOB_TYPE, KINDS, Watcher
from wakeboard.core.time.clock_skew import is_before
from wakeboard.queue.enqueue import enqueue

# The web process evaluates the rules of workers that no worker has evaluated for so long, and those whose
# change no worker has sent for so long, as when no worker has a channel.
NEGLECTED_SECONDS = 120
CHECK_TIMEOUT = "3s"
# Rules about signs of life are evaluated once this session is so old: after an outage of the database, and
# after a start, everybody is silent until they are back.
SETTLE_SECONDS = 20
MOST_TOLD_NAMES = 200

DUE = f"""
SELECT r.id, r.kind FROM wakeboard.alert_rules AS r
JOIN unnest(%(kinds)s::text[], %(every)s::float8[], %(mine)s::bool[], %(settles)s::float8[])
    AS k (kind, every, mine, settles) USING (kind)
CROSS JOIN pg_stat_get_activity(pg_backend_pid()) AS session
WHERE r.enabled AND {is_before("session.backend_start", "k.settles")} AND CASE
    WHEN k.mine THEN {is_before("coalesce(r.checked_at, '-infinity')", "0.9 * k.every")}
    WHEN {is_before("coalesce(r.checked_at, r.created_at)", f"{NEGLECTED_SECONDS} + k.every")} THEN true
    ELSE %(can_tell)s AND r.state <> r.told AND coalesce(r.silenced_until, '-infinity') < now()
        AND {is_before("greatest(r.fired_at, r.recovered_at)", NEGLECTED_SECONDS)}
END
"""
# Also how many of all rules fire: another process may have evaluated those.
DUE_AND_FIRING = f"""
SELECT coalesce(array_agg(due.id), '{{}}'), coalesce(array_agg(due.kind), '{{}}'),
    (SELECT count(*) FROM wakeboard.alert_rules WHERE enabled AND state = 'firing')
FROM ({DUE}) AS due
"""
_STILL_DUE = f"SELECT id FROM ({DUE}) AS due"
LOCK = f"""
SELECT {COLUMNS}
FROM wakeboard.alert_rules AS r WHERE r.id = %(id)s AND r.id IN ({_STILL_DUE}) FOR UPDATE OF r SKIP LOCKED
"""
# Claims a rule and limits its check, in one statement: most checks find what the last one found, and then
# nothing else is written.
CLAIM = f"""
UPDATE wakeboard.alert_rules AS r SET checked_at = now()
FROM (SELECT set_config('statement_timeout', '{CHECK_TIMEOUT}', true)) AS timeout
WHERE r.id = (
    SELECT r.id FROM wakeboard.alert_rules AS r WHERE r.id = %(id)s AND r.id IN ({_STILL_DUE})
    FOR UPDATE SKIP LOCKED
)
RETURNING {COLUMNS}
"""
SAVE = """
UPDATE wakeboard.alert_rules SET state = %(state)s, told = %(told)s, turns = %(turns)s,
    fired_at = %(fired_at)s, recovered_at = %(recovered_at)s, sent_at = %(sent_at)s,
    found = %(found)s::jsonb
WHERE id = %(id)s
"""
RECORD_ERROR = """
UPDATE wakeboard.alert_rules SET checked_at = now(),
    found = coalesce(found, '{}'::jsonb) || jsonb_build_object('error', %(error)s::text)
WHERE id = %(id)s
"""
# Of a report: what its line says, and the day of the last one.
SAVE_REPORT = """
UPDATE wakeboard.alert_rules SET found = %(found)s::jsonb, checked_at = now(),
    sent_at = CASE WHEN %(is_sent)s THEN now() ELSE sent_at END
WHERE id = %(id)s
"""
# checked_at stays: a process with a channel shall find the rule neglected.
SAVE_UNSENT_REPORT = "UPDATE wakeboard.alert_rules SET found = %(found)s::jsonb WHERE id = %(id)s"
POST = """
INSERT INTO wakeboard.alert_messages (rule_id, kind, channel, subject, body)
VALUES (%(rule_id)s, %(kind)s, %(channel)s, %(subject)s, %(body)s::jsonb) RETURNING id
"""
SET_RUN = "UPDATE wakeboard.alert_messages SET run_id = %(run_id)s WHERE id = %(id)s"


class CheckTimeout(Exception):
    """A check was not answered in time; nothing was written for ``rule``."""

    def __init__(self, rule: AlertRule) -> None:
        super().__init__(rule.name)
        self.rule = rule


class Evaluation(NamedTuple):
    """How many messages the evaluation of one rule wrote, and how many more rules fire (-1: it recovered)."""

    messages: int
    more_firing: int = 0


@dataclass(frozen=True, slots=True)
class RuleEvaluator:
    """Evaluates the rules of one ``watcher``; ``settings`` name the channels."""

    watcher: Watcher
    settings: Settings

    def step(self, connection: Connection) -> dict[str, int]:
        """Evaluate every rule that is due and unlocked.

        Returns how many rules were evaluated (``looked``), how many messages that wrote, and how many of all
        rules fire.
        """
        row = connection.execute(DUE_AND_FIRING.encode(), self._kinds()).fetchone()
        ids, kinds, firing = row or ((), (), 0)
        numbers = {"looked": 0, "firing": firing, "messages": 0}
        for rule_id, kind in zip(ids, kinds, strict=True):
            try:
                with connection.transaction():
                    result = self._evaluate(connection, rule_id, LOCK if KINDS[kind].is_report else CLAIM)
            except CheckTimeout as timeout:
                assert isinstance(timeout.__cause__, psycopg.Error)
                _record_error(connection, timeout.rule, timeout.__cause__)
                result = Evaluation(0)
            if result is not None:
                numbers["looked"] += 1
                numbers["messages"] += result.messages
                numbers["firing"] += result.more_firing
        return numbers

    def _kinds(self) -> dict[str, object]:
        """Return the kinds that this watcher evaluates; the web process also those that workers neglect."""
        chosen = [kind for kind in KINDS.values() if self.watcher in ("web", kind.watcher)]
        return {
            "kinds": [kind.name for kind in chosen],
            "every": [kind.every_seconds for kind in chosen],
            "mine": [kind.watcher == self.watcher for kind in chosen],
            "settles": [float(kind.is_of_others * SETTLE_SECONDS) for kind in chosen],
            "can_tell": bool(self.settings.alert_channels),
        }

    def _evaluate(self, connection: Connection, rule_id: int, statement: str) -> Evaluation | None:
        """Evaluate one rule, locked by ``statement``, inside a transaction; None when another process does.

        Raises CheckTimeout when the transaction cannot go on.
        """
        with connection.cursor(row_factory=class_row(AlertRule)) as cursor:
            rule = cursor.execute(statement.encode(), {"id": rule_id, **self._kinds()}).fetchone()
        if rule is None:
            return None
        kind = KINDS[rule.kind]
        if kind.is_report:
            return self._report(connection, rule)
        try:
            finding = check_rule(connection, rule.kind, kind.values(rule.settings))
        except psycopg.Error as failure:
            raise CheckTimeout(rule) from failure
        return self._record_finding(connection, rule, finding)

    def _record_finding(self, connection: Connection, rule: AlertRule, finding: Finding) -> Evaluation:
        """Write the next state of a rule and the messages that follow."""
        channels, values = self.settings.alert_channels, KINDS[rule.kind].values(rule.settings)
        told_names = list((rule.found or {}).get("told_names", ()))
        after, notice = next_state(
            rule,
            rule.now,
            firing=finding.firing,
            has_new_names=not set(finding.names) <= set(told_names),
            window_seconds=values["window_seconds"],
            remind_seconds=values["remind_seconds"],
            can_tell=bool(channels),
        )
        if after.state != rule.state:
            sentence = "An alert fires." if finding.firing else "An alert has recovered."
            log.warn(sentence, rule=rule.name, found=finding.sentence)
        if notice is not None:
            still_told = told_names if rule.told == "firing" else []
            told_names = list(dict.fromkeys([*still_told, *finding.names]))
            # The message tells of the changes that it settles.
            settled = replace(after, turns=rule.turns + (after.state != rule.state))
            origin = Origin.of(self.settings, rule.installation)
            text = write_message(rule.name, rule.kind, notice, finding, settled, origin, rule.now)
            self._post(connection, rule.id, notice, text)
        found = {**finding.to_json(), "told_names": told_names[:MOST_TOLD_NAMES]}
        if after != rule or found != rule.found:
            connection.execute(SAVE.encode(), {**asdict(after), "found": to_jsonb(found)})
        more_firing = (after.state == "firing") - (rule.state == "firing")
        return Evaluation(len(channels) if notice else 0, more_firing)

    def _report(self, connection: Connection, rule: AlertRule) -> Evaluation:
        """Write the report that is due, if one is."""
        plan, channels = report.plan_rule(rule, self.settings), self.settings.alert_channels
        found = {
            "sentence": report.describe_plan(plan, self.settings), "day": (rule.found or {}).get("day"),
        }  # fmt: skip
        is_silenced = rule.silenced_until is not None and rule.silenced_until > rule.now
        if plan.due is None or is_silenced or not channels:
            statement = SAVE_REPORT if plan.due is None or is_silenced else SAVE_UNSENT_REPORT
            connection.execute(statement, {"id": rule.id, "is_sent": False, "found": to_jsonb(found)})
            return Evaluation(0)
        origin = Origin.of(self.settings, rule.installation)
        try:
            text = report.write_report(connection, self.settings, rule, plan.due, origin, "report")
        except psycopg.Error as failure:
            _record_error(connection, rule, failure)
            return Evaluation(0)
        self._post(connection, rule.id, "report", text)
        found = {
            "sentence": report.describe_plan(replace(plan, due=None), self.settings),
            "day": plan.due.day.isoformat(),
        }
        connection.execute(SAVE_REPORT, {"id": rule.id, "is_sent": True, "found": to_jsonb(found)})
        return Evaluation(len(channels))

    def _post(self, connection: Connection, rule_id: int, cause: str, text: MessageText) -> None:
        """Write a message for each channel, and the run that delivers it where workers do that."""
        for channel in self.settings.alert_channels:
            message_id = post(connection, rule_id, cause, channel, text)
            if self.watcher == "worker":
                key, payload = f"{JOB_TYPE}:{message_id}", {"message_id": message_id}
                run_id = enqueue(connection, JOB_TYPE, payload, key=key, priority=0, enqueued_by="alerts")
                connection.execute(SET_RUN, {"id": message_id, "run_id": run_id})


def post(connection: Connection, rule_id: int | None, cause: str, channel: str, text: MessageText) -> int:
    """Write one message and return its id."""
    values = {
        "rule_id": rule_id, "kind": cause, "channel": channel, "subject": text.subject,
        "body": to_jsonb(text.body),
    }  # fmt: skip
    ((message_id,),) = connection.execute(POST, values).fetchall()
    return int(message_id)


def _record_error(connection: Connection, rule: AlertRule, failure: psycopg.Error) -> None:
    """Write the error of a check on its rule; raise it again when the connection is gone."""
    if connection.closed:
        raise failure
    reason = str(failure).strip().splitlines()[0][:300]
    log.warn("An alert's question was not answered.", rule=rule.name, error=reason)
    connection.execute(RECORD_ERROR, {"id": rule.id, "error": reason})
