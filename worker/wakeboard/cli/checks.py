"""``doctor`` and ``config``: is all in order here, and with which settings."""

from __future__ import annotations

import click

from wakeboard.cli import diagnosis
from wakeboard.cli.flags import Verb, is_json, settings
from wakeboard.cli.printing import answer, listing, say


@click.command(cls=Verb)
def doctor() -> int:
    """Check configuration, database, schema, workers and app; exit code 1 when something fails."""
    findings = diagnosis.examine(settings())
    worst = max((finding.level for finding in findings), key=diagnosis.LEVELS.index)
    if is_json():
        items = [{"check": f.check, "level": f.level, "says": f.says, "mend": f.mend} for f in findings]
        answer({"result": worst, "items": items}, "")
    else:
        for finding in findings:
            mend = f" → {finding.mend}" if finding.mend else ""
            say(f"{finding.level:<8} {finding.check}: {finding.says}{mend}")
    return 1 if worst == "fail" else 0


@click.command(cls=Verb)
def config() -> None:
    """List every setting, its value and where it came from; secrets are masked."""
    listing(settings().rows(), ("name", "value", "origin"), "")
