"""``rehearse``: tries a release before it is one, and prints a table."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

from wakeboard.cli.exceptions import CommandFailed
from wakeboard.cli.flags import LeafCommand, is_json
from wakeboard.cli.terminal import print_notice, print_text
from wakeboard.demo.rehearsal.findings import RehearsalFinding, RehearsalReport


@click.command(cls=LeafCommand, settings=())
@click.option(
    "--without-effects", is_flag=True, help="Do not use the effects ledger: the rehearsal must fail then."
)
def rehearse(without_effects: bool) -> int:
    """Rehearse the worst day: 100 receipts by real mail, 20 refused at first, a worker stopped, one killed.

    Takes up to a minute on a database of its own, never on the one that --database-url names. Prints what was
    expected and what was measured; exit code 1 when a line is not so.
    """
    # The rehearsal brings the demo along, which the help page does not need.
    from wakeboard.demo import rehearsal

    try:
        report = rehearsal.rehearse(print_notice, with_effects=not without_effects)
    except rehearsal.RehearsalError as stuck:
        raise CommandFailed(str(stuck)) from stuck
    if is_json():
        click.echo(json.dumps(_body(report)))
    else:
        _print(report)
    return 0 if report.is_ok else 1


def _body(report: RehearsalReport) -> dict[str, object]:
    lines = [asdict(each) | {"ok": each.is_ok} for each in report.findings]
    for line in lines:
        del line["is_ok"]
    return {
        "ok": report.is_ok,
        "seconds": round(report.seconds, 1),
        "with_effects": report.with_effects,
        "lines": lines,
    }


def _print(report: RehearsalReport) -> None:
    head = RehearsalFinding("", "EXPECTED", "MEASURED", True)
    lines = [head, *report.findings]
    widths = [max(len(text) for text in texts) for texts in zip(*map(_texts, lines), strict=True)]
    for line in lines:
        cells = "  ".join(text.ljust(width) for text, width in zip(_texts(line), widths, strict=True))
        click.echo(f"{cells}  {'' if line is head else _verdict(line)}".rstrip())
    wrong = sum(not each.is_ok for each in report.findings)
    how = "Every line is so" if not wrong else f"{wrong} of {len(report.findings)} lines not so"
    print_text(f"{how}, after {report.seconds:.0f} s.")


def _texts(line: RehearsalFinding) -> tuple[str, str, str]:
    return line.what, line.expected, line.measured


def _verdict(line: RehearsalFinding) -> str:
    """Return ok or FAIL, coloured where click finds a terminal and nobody asked for none."""
    word, colour = ("ok", "green") if line.is_ok else ("FAIL", "red")
    return word if os.environ.get("NO_COLOR") else click.style(word, fg=colour, bold=not line.is_ok)
