"""``worker``, ``tick``, ``web``: what serves until it is told to stop."""

from __future__ import annotations

import os
import sys
from typing import Any

import click
from click.globals import pop_context

from wakeboard.cli import reach
from wakeboard.cli.flags import MISSPELT_TOLD, LeafCommand, settings, settings_alone, tell_misspelt
from wakeboard.cli.parameters import read_duration
from wakeboard.cli.refusals import WrongUse
from wakeboard.config import certificates, log, stop_signals, streams, working_directory
from wakeboard.config.settings import SETTINGS
from wakeboard.handlers import run_as

EVERY_SETTING = tuple(setting.name for setting in SETTINGS)


def _types(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("name at least one job type, such as --types send_invoice,http")
    return names


@click.command(cls=LeafCommand, settings=EVERY_SETTING)
@click.option("--types", callback=_types, metavar="A,B", help="Run these job types alone.")
@click.option("--name", metavar="TEXT", help="What the pages call this worker.")
def worker(types: list[str] | None, name: str | None) -> int:
    """Run a worker: it claims runs, fires schedules and takes over what others lost. SIGTERM stops it."""
    return _supervise(types=types, name=name)


@click.command(cls=LeafCommand, settings=EVERY_SETTING)
@click.option(
    "--for",
    "claim_seconds",
    type=read_duration,
    metavar="DURATION",
    help="Claim no longer than this; what runs may end.",
)
@click.option("--types", callback=_types, metavar="A,B", help="Run these job types alone.")
def tick(claim_seconds: float | None, types: list[str] | None) -> int:
    """For a crontab line: fire what is due, run until nothing is left, end. Ticks may overlap."""
    # Cron would mail it each minute; every other command tells it.
    click.get_current_context().meta[MISSPELT_TOLD] = True
    return _supervise(types=types, until_drained=True, claim_seconds=claim_seconds)


def require_folder() -> None:
    """Refuse to serve from a folder that was removed: settings and handlers are looked for in it."""
    if working_directory.current() is None:
        raise WrongUse(working_directory.GONE)


def _leave_command() -> None:
    while click.get_current_context(silent=True):
        pop_context()


def _supervise(**how: Any) -> int:
    # Of the runtime only this is loaded before the fork: what the fork server has loaded, every child has.
    from wakeboard.runtime.processes import fork_server

    require_folder()
    chosen = settings_alone()
    run_as.check(chosen)
    # Before anything is loaded, opened or started that the supervisor alone needs.
    zygote = fork_server.fork_zygote(on_fork=_leave_command)
    log.never_wait()
    tell_misspelt()
    # Loaded after the fork: children need nothing of it.
    from wakeboard.runtime import supervisor

    log.configure(chosen.log_format, level=chosen.log_level, moves=chosen.log_moves)
    with stop_signals.interrupting():
        url = reach.database_url(chosen)
    return supervisor.run(chosen, url=url, zygote=zygote, **how)


@click.command(cls=LeafCommand, settings=EVERY_SETTING)
def web() -> None:
    """Run the dashboard alone."""
    log.never_wait()
    require_folder()
    chosen = settings()
    certificates.check(chosen)
    with stop_signals.interrupting():
        found = {"WAKEBOARD_DATABASE_URL": reach.database_url(chosen)}
    command = [sys.executable, "-P", "-m", "wakeboard_dashboard"]
    streams.end()
    # A stop that comes from here on waits for the program that follows.
    stop_signals.hold_back()
    if stop_signals.was_asked():
        return
    os.execve(sys.executable, command, os.environ | chosen.environment_variables() | found)
