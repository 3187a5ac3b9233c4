"""Commands that apply one move to their targets, with a reason for the audit log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from wakeboard.cli.connection import Connection, connect
from wakeboard.cli.flags import LeafCommand, reason_option
from wakeboard.cli.parameters import read_run_id
from wakeboard.cli.printing import print_answers
from wakeboard.core.answer import Answer
from wakeboard.database.audit import Actor, terminal_actor
from wakeboard.queue import selection

# connection, target, actor, reason → answer
MoveFunction = Callable[[Connection, Any, Actor, str | None], Answer]
Argument = Callable[[Callable[..., int]], Callable[..., int]]
NAME = click.argument("target", metavar="NAME")


def add_verb(group: click.Group, name: str, move: MoveFunction, help: str, argument: Argument = NAME) -> None:
    """Add the command ``name`` to ``group``: it applies ``move`` to the value or values of ``argument``.

    ``argument`` is a click argument called "target".
    """

    @group.command(name, help=help)
    @argument
    @reason_option
    def apply(target: object, reason: str | None) -> int:
        targets = target if isinstance(target, tuple) else (target,)
        with connect() as connection:
            return print_answers([move(connection, each, terminal_actor(), reason) for each in targets])


def make_run_verb(name: str, verb: str, help: str) -> click.Command:
    """Return the command ``name``, which applies ``verb``, a key of ``core.states.VERBS``, to runs."""

    @click.command(name, cls=LeafCommand, help=help)
    @click.argument("ids", type=read_run_id, nargs=-1, required=True)
    @reason_option
    def apply(ids: tuple[int, ...], reason: str | None) -> int:
        with connect() as connection:
            return print_answers(selection.act_on_each(connection, verb, ids, terminal_actor(), reason))

    return apply
