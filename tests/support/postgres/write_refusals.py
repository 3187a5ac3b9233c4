"""Rules that the owner of a database puts on the tables of Wakeboard, and how scripts meet them."""

from __future__ import annotations

import select
from typing import Any

from tests.support.factories import Connection
from wakeboard.runtime.loop.channel import Channel, Script


def refuse(
    connection: Connection, when: str, sentence: str, move: str = "UPDATE", table: str = "job_runs"
) -> None:
    """Put a trigger on a table that raises ``sentence`` when the new row is so (SQL on ``new``, ``old``)."""
    _rule(connection, when, sentence)
    connection.execute(
        f"CREATE TRIGGER owners_rule BEFORE {move} ON wakeboard.{table}"
        f" FOR EACH ROW EXECUTE FUNCTION public.owners_rule()".encode()
    )


def refuse_at_commit(connection: Connection, when: str, sentence: str, move: str = "UPDATE") -> None:
    """Do the same to job_runs with a constraint trigger, which speaks at the end of the transaction."""
    _rule(connection, when, sentence)
    connection.execute(
        f"CREATE CONSTRAINT TRIGGER owners_rule AFTER {move} ON wakeboard.job_runs"
        f" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.owners_rule()".encode()
    )


def _rule(connection: Connection, when: str, sentence: str) -> None:
    connection.execute(
        f"CREATE OR REPLACE FUNCTION public.owners_rule() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF {when} THEN RAISE EXCEPTION '{sentence}'; END IF; RETURN new; END $$".encode()
    )


def refuse_no_more(connection: Connection) -> None:
    """Take the rule away."""
    connection.execute("DROP FUNCTION public.owners_rule() CASCADE")


def result_of(channel: Channel, script: Script) -> Any:
    """Run a script of the worker's loop to its end; return its value, or what it failed with."""
    told: list[Any] = []
    channel.run(script, told.append, told.append)
    while not told:
        select.select([channel.fileno()], [], [], 10)
        channel.pump()
    return told[0]
