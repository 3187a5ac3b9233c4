"""Lines on standard output and standard error.

Standard output holds the answer alone. Text is escaped, because payloads, handlers and producers wrote parts
of it, and a terminal must not obey them.
"""

from __future__ import annotations

import sys

import click

from wakeboard.config.log import escaped
from wakeboard.config.streams import redirect_to_null


def print_text(text: str) -> None:
    """Print a part of the answer on standard output."""
    click.echo("\n".join(escaped(line) for line in text.split("\n")))


def print_notice(text: str) -> None:
    """Print progress or an error on standard error; when nobody can read that, the work goes on."""
    try:
        click.echo("\n".join(escaped(line) for line in text.split("\n")), err=True)
        sys.stderr.flush()
    except OSError:
        redirect_to_null(sys.stderr)
