"""Reads alert rules, their messages, and the last ping of the dead man's switch."""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, case, func, select

from wakeboard.database.tables import alert_messages, alert_rules, installation
from wakeboard_dashboard.queries.statements import fixed

MESSAGES = 50

rules = alert_rules.c
messages = alert_messages.c
IS_FIRING = rules.enabled & (rules.state == "firing")
IS_SILENCED = func.coalesce(rules.silenced_until > func.now(), False)
_FIRING = fixed(
    select(rules.name, rules.kind, rules.fired_at, IS_SILENCED.label("is_silenced"))
    .where(IS_FIRING)
    .order_by(rules.fired_at)
)


def list_rules(connection: Connection) -> list[RowMapping]:
    """Return all rules, those that fire first: the columns of alert_rules, and ``is_silenced``."""
    rank = case((IS_FIRING, 0), (rules.enabled, 1), else_=2)
    statement = select(alert_rules, IS_SILENCED.label("is_silenced")).order_by(rank, rules.id)
    return list(connection.execute(statement).mappings())


def find_rule(connection: Connection, rule_id: int) -> RowMapping | None:
    """Return one rule as ``list_rules`` does, None when there is none."""
    statement = select(alert_rules, IS_SILENCED.label("is_silenced")).where(rules.id == rule_id)
    return connection.execute(statement).mappings().one_or_none()


def list_firing_rules(connection: Connection) -> list[RowMapping]:
    """Return name, kind, fired_at and is_silenced of the rules that fire, the longest first."""
    return list(connection.exec_driver_sql(_FIRING).mappings())


def list_rule_states(connection: Connection) -> list[tuple[str, bool]]:
    """Return (name, whether it fires) of every enabled rule."""
    statement = select(rules.name, IS_FIRING).where(rules.enabled).order_by(rules.name)
    return [(name, bool(is_firing)) for name, is_firing in connection.execute(statement)]


def list_latest_messages(connection: Connection) -> list[RowMapping]:
    """Return the last 50 messages, newest first, with the name of their rule (None: the database's own)."""
    body = messages.body["sentence"].astext.label("sentence")
    statement = (
        select(
            messages.id,
            messages.rule_id,
            rules.name.label("rule"),
            messages.kind,
            messages.channel,
            messages.subject,
            body,
            messages.run_id,
            messages.tries,
            messages.error,
            messages.answer,
            messages.created_at,
            messages.claimed_until,
            messages.sent_at,
            messages.gave_up_at,
        )
        .select_from(alert_messages.outerjoin(alert_rules, rules.id == messages.rule_id))
        .order_by(messages.id.desc())
        .limit(MESSAGES)
    )
    return list(connection.execute(statement).mappings())


def read_ping(connection: Connection) -> dict[str, object]:
    """Return pinged_at and ping_error of the installation."""
    row = connection.execute(
        select(installation.c.pinged_at, installation.c.ping_error)
        .order_by(installation.c.created_at)
        .limit(1)
    ).one_or_none()
    return {"pinged_at": row[0] if row else None, "ping_error": row[1] if row else None}
