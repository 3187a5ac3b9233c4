"""Lines on standard output and standard error.

Standard output is the answer alone. Everything that came from a payload, handler or producer is escaped:
a terminal must not obey it.
"""

from __future__ import annotations

import sys

import click

from wakeboard.config.log import escaped
from wakeboard.config.streams import redirect_to_null


def say(sentence: str) -> None:
    """Print one sentence of the answer."""
    click.echo("\n".join(escaped(line) for line in sentence.split("\n")))


def tell(sentence: str) -> None:
    """Print what happens on the way, on standard error; where nobody can read that, the work goes on."""
    try:
        click.echo("\n".join(escaped(line) for line in sentence.split("\n")), err=True)
        sys.stderr.flush()
    except OSError:
        redirect_to_null(sys.stderr)


def complain(line: str) -> None:
    """Print why the command failed, on standard error."""
    if line:
        tell(line)
