"""``alerts``: the rules and their states; send a test, silence, edit, switch on and off."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import click

from wakeboard.alerts import test_message
from wakeboard.cli.connection import Connection, connect, database_now, read_rows
from wakeboard.cli.flags import CommandGroup, read_settings, reason_option
from wakeboard.cli.parameters import read_duration
from wakeboard.cli.printing import print_answers, print_table
from wakeboard.core.answer import Answer
from wakeboard.core.rule_types import KINDS
from wakeboard.database.audit import terminal_actor
from wakeboard.queue import alerts as moves

COLUMNS = ("name", "state", "found", "fired_at", "sent_at", "checked_at", "silenced_until")
RULES = """
SELECT id, name, kind, enabled, state, found ->> 'sentence' AS found, fired_at, recovered_at, sent_at,
    checked_at, silenced_until, coalesce(silenced_until > now(), false) AS is_silenced
FROM wakeboard.alert_rules ORDER BY state, name
"""


@click.group(cls=CommandGroup)
def alerts() -> None:
    """Alert rules: list, test, silence, edit, on, off."""


@alerts.command("list")
def list_() -> None:
    """List the rules, those that fire first."""
    with connect() as connection:
        now = database_now(connection)
        rows = [{**row, "state": moves.state_of(row)} for row in read_rows(connection, RULES)]
    print_table(rows, COLUMNS, "There is no alert rule.", as_of=now)


@alerts.command()
@click.argument("name", required=False)
@click.option("--channel", type=click.Choice(("mail", "webhook")), help="This channel alone.")
@reason_option
def test(name: str | None, channel: str | None, reason: str | None) -> int:
    """Send a test message now, from this terminal's settings, and say what was answered."""

    def send(connection: Connection, rule_id: int) -> Answer:
        settings = read_settings()
        return test_message.send_test(
            connection, settings, rule_id, terminal_actor(), reason, channel=channel
        )

    return _apply(name or next(iter(KINDS)), send)


@alerts.command()
@click.argument("name")
@click.option(
    "--for",
    "seconds",
    type=read_duration,
    metavar="DURATION",
    default="1h",
    help="How long, such as 1h; 0 ends it. [1h]",
)
@reason_option
def silence(name: str, seconds: float, reason: str | None) -> int:
    """Send nothing about a rule for a while; it is still looked at."""
    return _apply(
        name,
        lambda connection, rule_id: moves.silence(connection, rule_id, seconds, terminal_actor(), reason),
    )


@alerts.command()
@click.argument("name")
@click.argument("numbers", nargs=-1, metavar="[SETTING=VALUE]...")
@reason_option
def edit(name: str, numbers: tuple[str, ...], reason: str | None) -> int:
    """Change the numbers of a rule, such as: edit morning_report at=07:30."""
    return _edit(name, dict(_pair(each) for each in numbers), reason)


@alerts.command()
@click.argument("name")
@reason_option
def on(name: str, reason: str | None) -> int:
    """Switch a rule on: on morning_report for a mail each morning."""
    return _edit(name, {moves.ENABLED: "1"}, reason)


@alerts.command()
@click.argument("name")
@reason_option
def off(name: str, reason: str | None) -> int:
    """Switch a rule off: it is not looked at, and tells nothing."""
    return _edit(name, {moves.ENABLED: "0"}, reason)


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise click.BadParameter(f"“{text[:60]}” is not SETTING=VALUE, such as at=07:30.")
    return name, value


def _edit(name: str, values: Mapping[str, str], reason: str | None) -> int:
    return _apply(
        name, lambda connection, rule_id: moves.edit(connection, rule_id, values, terminal_actor(), reason)
    )


def _apply(name: str, move: Callable[[Connection, int], Answer]) -> int:
    """Call ``move`` with the id of the rule ``name``; print its answer and return the exit code."""
    with connect() as connection:
        rule_id = moves.find_rule_id(connection, name)
        if rule_id is None:
            sentence = f"There is no alert rule '{name[:60]}'; list them: wakeboard alerts list"
            return print_answers([Answer(name, None, "missing", sentence)])
        return print_answers([move(connection, rule_id)])
