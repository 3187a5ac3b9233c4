"""How many statements a server of ours is sent, by who sends them: counted in its own log."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

LOGGED = "\nlog_line_prefix = '%a|'\nlog_statement = 'all'\n"
STATEMENT = re.compile(r"^([^|\n]*)\|LOG:  (?:statement|execute [^:]*):\s+(\S+)", re.MULTILINE)
# What only frames the others.
FRAMES = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")
SETTLE_SECONDS = 1.0


@contextmanager
def logging_statements(folder: Path) -> Iterator[Path]:
    """Let the server of ``bench.server`` in ``folder`` log each statement meanwhile; yield its log."""
    settings = next(folder.rglob("postgresql.conf"))
    pid = int((settings.parent / "postmaster.pid").read_text().split()[0])
    before = settings.read_text()
    settings.write_text(before + LOGGED)
    os.kill(pid, signal.SIGHUP)
    sleep(SETTLE_SECONDS)
    try:
        logs = list((folder / "d").rglob("log/*.log"))
        yield max(logs, key=lambda path: path.stat().st_mtime)
    finally:
        settings.write_text(before)
        os.kill(pid, signal.SIGHUP)
        sleep(SETTLE_SECONDS)


def statement_rates(folder: Path, seconds: float) -> dict[str, tuple[float, float]]:
    """Return, by the name of the connection: statements a second, and those that are not mere frames."""
    with logging_statements(folder) as log:
        begin = log.stat().st_size
        sleep(seconds)
        with log.open(errors="replace") as lines:
            lines.seek(begin)
            found = STATEMENT.findall(lines.read())
    all_, asking = Counter[str](), Counter[str]()
    for name, word in found:
        all_[name] += 1
        asking[name] += word.upper().rstrip(";") not in FRAMES
    return {name: (all_[name] / seconds, asking[name] / seconds) for name in all_}
