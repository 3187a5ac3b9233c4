"""Looking at rules: any number of processes may, each rule is looked at by one of them at a time.

State, messages and the runs that deliver them are written in one transaction; nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import psycopg
from psycopg.rows import dict_row

from wakeboard.alerts import checks, report
from wakeboard.alerts.finding import Finding
from wakeboard.alerts.messages import MessageText, Place, stored, words
from wakeboard.alerts.rule_state import News, RuleMemory, judge
from wakeboard.config import log
from wakeboard.config.settings import Settings
from wakeboard.core.rule_types import JOB_TYPE, KINDS, Watcher
from wakeboard.core.time.clock_skew import is_before
from wakeboard.queue.enqueue import enqueue

Connection = psycopg.Connection[Any]
Row = Mapping[str, Any]
# Workers' rules that no worker has looked at for this long are looked at by the web process; so are those of
# whose change no worker has told for as long, be it that none knows a channel.
NEGLECTED_SECONDS = 120
QUESTION_TIMEOUT = "3s"
# Rules about what others say regularly are looked at once this session has stood for so long: after an outage
# of the database, and after a start, everybody is silent until they are back.
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
# How many of all rules fire, too: another process may have looked at those.
DUE_AND_FIRING = f"""
SELECT coalesce(array_agg(due.id), '{{}}'), coalesce(array_agg(due.kind), '{{}}'),
    (SELECT count(*) FROM wakeboard.alert_rules WHERE enabled AND state = 'firing')
FROM ({DUE}) AS due
"""
_STILL_DUE = f"SELECT id FROM ({DUE}) AS due"
_PLACE = "(SELECT i.id FROM wakeboard.installation AS i ORDER BY i.created_at LIMIT 1) AS place"
LOCK = f"""
SELECT r.*, now() AS now, {_PLACE}
FROM wakeboard.alert_rules AS r WHERE r.id = %(id)s AND r.id IN ({_STILL_DUE}) FOR UPDATE OF r SKIP LOCKED
"""
# The turn to look at a rule that watches, and how long its question may take, in one statement: most looks
# find what the last one found, and then nothing else is written.
TURN = f"""
UPDATE wakeboard.alert_rules AS r SET checked_at = now()
FROM (SELECT set_config('statement_timeout', '{QUESTION_TIMEOUT}', true)) AS patience
WHERE r.id = (
    SELECT r.id FROM wakeboard.alert_rules AS r WHERE r.id = %(id)s AND r.id IN ({_STILL_DUE})
    FOR UPDATE SKIP LOCKED
)
RETURNING r.*, now() AS now, {_PLACE}
"""
SAVE = """
UPDATE wakeboard.alert_rules SET state = %(state)s, told = %(told)s, turns = %(turns)s,
    fired_at = %(fired_at)s, recovered_at = %(recovered_at)s, sent_at = %(sent_at)s,
    found = %(found)s::jsonb
WHERE id = %(id)s
"""
PUZZLED = """
UPDATE wakeboard.alert_rules SET checked_at = now(),
    found = coalesce(found, '{}'::jsonb) || jsonb_build_object('error', %(error)s::text)
WHERE id = %(id)s
"""
# A report: what its line says, and which day's was written last.
REPORTED = """
UPDATE wakeboard.alert_rules SET found = %(found)s::jsonb, checked_at = now(),
    sent_at = CASE WHEN %(is_sent)s THEN now() ELSE sent_at END
WHERE id = %(id)s
"""
# Not looked at: others, who know a channel, shall take it for neglected.
UNSENT = "UPDATE wakeboard.alert_rules SET found = %(found)s::jsonb WHERE id = %(id)s"
POST = """
INSERT INTO wakeboard.alert_messages (rule_id, kind, channel, subject, body)
VALUES (%(rule_id)s, %(kind)s, %(channel)s, %(subject)s, %(body)s::jsonb) RETURNING id
"""
CARRIED = "UPDATE wakeboard.alert_messages SET run_id = %(run_id)s WHERE id = %(id)s"


class CheckTimeout(Exception):
    """A question could not be answered in time; nothing was written, ``row`` is the rule."""

    def __init__(self, row: Row) -> None:
        super().__init__(row["name"])
        self.row = row


@dataclass(frozen=True, slots=True)
class Watch:
    """Who looks, and with which settings: the kinds that are theirs and the channels that they may fill."""

    watcher: Watcher
    settings: Settings

    def step(self, connection: Connection) -> dict[str, int]:
        """Look at every rule that is due and free; return how many were looked at and were told, and how many
        of all rules fire."""
        row = connection.execute(DUE_AND_FIRING.encode(), self._kinds()).fetchone()
        ids, kinds, firing = row or ((), (), 0)
        numbers = {"looked": 0, "firing": firing, "messages": 0}
        for rule_id, kind in zip(ids, kinds, strict=True):
            try:
                with connection.transaction():
                    found = self._look(connection, rule_id, LOCK if KINDS[kind].is_report else TURN)
            except CheckTimeout as failure:
                assert isinstance(failure.__cause__, psycopg.Error)
                _puzzled(connection, failure.row, failure.__cause__)
                found = 0, 0
            if found is not None:
                numbers["looked"] += 1
                numbers["messages"] += found[0]
                numbers["firing"] += found[1]
        return numbers

    def _kinds(self) -> Row:
        """Return the kinds that this watcher looks at; the web process also those that workers neglect."""
        chosen = [kind for kind in KINDS.values() if self.watcher in ("web", kind.watcher)]
        return {
            "kinds": [kind.name for kind in chosen],
            "every": [kind.every_seconds for kind in chosen],
            "mine": [kind.watcher == self.watcher for kind in chosen],
            "settles": [float(kind.is_of_others * SETTLE_SECONDS) for kind in chosen],
            "can_tell": bool(self.settings.alert_channels),
        }

    def _look(self, connection: Connection, rule_id: int, take: str) -> tuple[int, int] | None:
        """Look at one rule inside a transaction; return how many messages that wrote, and how many more rules
        fire since (-1 where it has recovered); None when others do.

        Raises CheckTimeout when the transaction cannot go on.
        """
        with connection.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute(take.encode(), {"id": rule_id, **self._kinds()}).fetchone()
        if row is None:
            return None
        if KINDS[row["kind"]].is_report:
            return self._report(connection, row), 0
        try:
            finding = checks.ask(connection, row["kind"], KINDS[row["kind"]].values(row["settings"]))
        except psycopg.Error as failure:
            raise CheckTimeout(row) from failure
        return self._decide(connection, row, finding)

    def _decide(self, connection: Connection, row: Row, found: Finding) -> tuple[int, int]:
        """Write what the rule remembers now and the messages that follow; return as ``_look`` does."""
        channels, values = self.settings.alert_channels, KINDS[row["kind"]].values(row["settings"])
        before, told = memory_of(row), list((row["found"] or {}).get("told_names", ()))
        after, news = judge(
            before,
            row["now"],
            firing=found.firing,
            is_news=not set(found.names) <= set(told),
            window_seconds=values["window_seconds"],
            remind_seconds=values["remind_seconds"],
            can_tell=bool(channels),
        )
        if after.state != before.state:
            sentence = "An alert fires." if found.firing else "An alert has recovered."
            log.warn(sentence, rule=row["name"], found=found.sentence)
        if news is not None:
            told = list(dict.fromkeys([*(told if before.told == "firing" else []), *found.names]))
            # The words tell of the changes that this message settles.
            turns = before.turns + (after.state != before.state)
            self._post(connection, row, news, found, replace(after, turns=turns))
        kept = {**found.stored(), "told_names": told[:MOST_TOLD_NAMES]}
        if after != before or kept != row["found"]:
            connection.execute(SAVE.encode(), {"id": row["id"], "found": stored(kept), **asdict(after)})
        more_firing = (after.state == "firing") - (before.state == "firing")
        return len(channels) if news else 0, more_firing

    def _post(self, connection: Connection, row: Row, news: News, found: Finding, memory: RuleMemory) -> None:
        """Write what is to be told of a rule that watches."""
        place = place_of(self.settings, row["place"])
        text = words(row["name"], row["kind"], news, found, memory, place, row["now"])
        self._send(connection, row["id"], news, text)

    def _report(self, connection: Connection, row: Row) -> int:
        """Write the report that is due, if one is; return how many messages these are."""
        found, channels = report.plan_of(row, self.settings), self.settings.alert_channels
        memory = {"sentence": report.said(found, self.settings), "day": (row["found"] or {}).get("day")}
        is_silenced = row["silenced_until"] is not None and row["silenced_until"] > row["now"]
        values = {"id": row["id"], "is_sent": False}
        if found.due is None or is_silenced or not channels:
            statement = REPORTED if found.due is None or is_silenced else UNSENT
            connection.execute(statement, {**values, "found": stored(memory)})
            return 0
        place = place_of(self.settings, row["place"])
        try:
            text = report.letter(connection, self.settings, row, found.due, place, "report")
        except psycopg.Error as failure:
            _puzzled(connection, row, failure)
            return 0
        self._send(connection, row["id"], "report", text)
        memory = {
            "sentence": report.said(replace(found, due=None), self.settings),
            "day": found.due.day.isoformat(),
        }
        connection.execute(REPORTED, {**values, "is_sent": True, "found": stored(memory)})
        return len(channels)

    def _send(self, connection: Connection, rule_id: int, cause: str, text: MessageText) -> None:
        """Write a message for each channel, and the run that delivers it where workers do that."""
        for channel in self.settings.alert_channels:
            message_id = post(connection, rule_id, cause, channel, text.subject, text.body)
            if self.watcher == "worker":
                key, payload = f"{JOB_TYPE}:{message_id}", {"message_id": message_id}
                run_id = enqueue(connection, JOB_TYPE, payload, key=key, priority=0, enqueued_by="alerts")
                connection.execute(CARRIED, {"id": message_id, "run_id": run_id})


def post(
    connection: Connection, rule_id: int | None, cause: str, channel: str, subject: str, body: dict[str, Any]
) -> int:
    """Write one message and return its id."""
    values = {"rule_id": rule_id, "kind": cause, "channel": channel, "subject": subject, "body": stored(body)}
    row = connection.execute(POST, values).fetchone()
    assert row is not None
    return int(row[0])


def place_of(settings: Settings, installation: str | None) -> Place:
    """Return where messages of these settings come from."""
    return Place(installation or "", _ribbon(settings.environment), settings.public_url)


def memory_of(row: Row) -> RuleMemory:
    """Return what the rule of ``row`` (of alert_rules) remembers."""
    return RuleMemory(**{each.name: row[each.name] for each in fields(RuleMemory)})


def _ribbon(environment: str | None) -> str | None:
    """Return the name in ``production red``."""
    name, _, colour = (environment or "").rpartition(" ")
    return (name or colour) or None


def _puzzled(connection: Connection, row: Row, failure: psycopg.Error) -> None:
    """Keep the reason on the rule; raise it again when the connection is gone."""
    if connection.closed:
        raise failure
    reason = str(failure).strip().splitlines()[0][:300]
    log.warn("An alert's question was not answered.", rule=row["name"], error=reason)
    connection.execute(PUZZLED, {"id": row["id"], "error": reason})


__all__ = ["Watch", "memory_of", "place_of", "post"]
