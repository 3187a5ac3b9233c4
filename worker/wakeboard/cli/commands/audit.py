"""``audit``: the audit log, by the filters of its page."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import click

from wakeboard.cli.connection import connect, database_now
from wakeboard.cli.flags import LeafCommand, is_json, read_settings
from wakeboard.cli.parameters import id_reader
from wakeboard.cli.printing import print_table
from wakeboard.cli.terminal import print_notice
from wakeboard.reporting.filters.values import in_zone, read_pairs

COLUMNS = ("id", "at", "actor", "source", "action", "target_type", "target_id", "result", "reason")


@click.command(cls=LeafCommand)
@click.option(
    "--who", multiple=True, metavar="NAME", help="The person, token or terminal user (anna, cli:root)."
)
@click.option(
    "--what", multiple=True, metavar="ACTION", help="What was done: run.retry, schedule.pause, user.change …"
)
@click.option(
    "--kind", multiple=True, metavar="KIND", help="The kind of thing: run, schedule, type, worker, user …"
)
@click.option("--target", multiple=True, metavar="KIND:NAME", help="One thing: run:48210, schedule:nightly.")
@click.option(
    "--result",
    multiple=True,
    help="done, asked, already, forbidden, denied, missing, invalid, refused (a,b).",
)
@click.option("--source", multiple=True, help="web, api, cli or engine.")
@click.option("--since", multiple=True, help="Since: 24h, 7d or 2026-11-21T08:30Z.")
@click.option("--until", multiple=True, help="Before.")
@click.option("--q", multiple=True, metavar="TEXT", help="Text in the reason.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="How many, newest first [50].")
@click.option("--cursor", type=id_reader("an audit row"), metavar="ID", help="Go on below this id.")
def audit(limit: int, cursor: int | None, **options: tuple[str, ...]) -> None:
    """List who did what, newest first. --json has what changed: before and after."""
    # Imported here, because they load SQLAlchemy.
    from wakeboard.reporting.filters.audit import FIELDS, search
    from wakeboard.reporting.filters.paging import read_page
    from wakeboard.reporting.filters.search import Start

    pairs = [(name, text) for name, texts in options.items() for text in texts]
    filters = read_pairs(pairs, in_zone(FIELDS, ZoneInfo(read_settings().timezone)))
    with connect() as connection:
        now = database_now(connection)
        matches = search(filters, now, start=None if cursor is None else Start(cursor))
        page = read_page(connection, matches, limit, cursor)
    none = "Nothing matches so far." if page.below else "Nothing matches."
    print_table(page.rows, COLUMNS, none, as_of=now, next=page.below)
    if page.below and not is_json():
        searched = "Only some rows were searched" if page.is_cut else "There are more"
        print_notice(f"{searched}: --cursor {page.below}")
