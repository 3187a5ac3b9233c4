"""``worker``, ``tick``, ``web``: processes that serve until they are stopped."""

from __future__ import annotations

import os
import sys

import click
from click.globals import pop_context

from wakeboard.cli.connection import database_url
from wakeboard.cli.exceptions import WrongUse
from wakeboard.cli.flags import MISSPELT_PRINTED, LeafCommand, load_settings, print_misspelt, read_settings
from wakeboard.cli.parameters import read_duration
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


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs ``module`` of this installation with ``arguments``.

    Without -P the working folder would come first on the path, with the user's own modules.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


@click.command(cls=LeafCommand, settings=EVERY_SETTING)
@click.option("--types", callback=_types, metavar="A,B", help="Run these job types alone.")
@click.option("--name", metavar="TEXT", help="What the pages call this worker.")
def worker(types: list[str] | None, name: str | None) -> int:
    """Run a worker: it claims runs, fires schedules and takes over what others lost. SIGTERM stops it."""
    return _supervise(types, name=name)


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
    # Cron would mail the notice each minute; every other command prints it.
    click.get_current_context().meta[MISSPELT_PRINTED] = True
    return _supervise(types, until_drained=True, claim_seconds=claim_seconds)


def require_folder() -> None:
    """Raise WrongUse when the current folder was removed: handlers are imported from it."""
    if working_directory.current_folder() is None:
        raise WrongUse(working_directory.MISSING_FOLDER)


def _leave_command() -> None:
    while click.get_current_context(silent=True):
        pop_context()


def _supervise(
    types: list[str] | None,
    *,
    name: str | None = None,
    until_drained: bool = False,
    claim_seconds: float | None = None,
) -> int:
    # Of the runtime only this is loaded before the fork: what the fork server has loaded, every child has.
    from wakeboard.runtime.processes import fork_server

    require_folder()
    settings = load_settings()
    run_as.check(settings)
    # Before anything is loaded, opened or started that the supervisor alone needs.
    zygote = fork_server.fork_zygote(on_fork=_leave_command)
    log.write_in_background()
    print_misspelt()
    # Loaded after the fork: children need nothing of it.
    from wakeboard.runtime import supervisor

    log.configure(settings.log_format, level=settings.log_level, moves=settings.log_moves)
    with stop_signals.interruptible():
        url = database_url(settings)
    return supervisor.run(
        settings, url=url, types=types, name=name, until_drained=until_drained, claim_seconds=claim_seconds,
        zygote=zygote,
    )  # fmt: skip


@click.command(cls=LeafCommand, settings=EVERY_SETTING)
def web() -> None:
    """Run the dashboard alone."""
    log.write_in_background()
    require_folder()
    settings = read_settings()
    certificates.check(settings)
    with stop_signals.interruptible():
        url = database_url(settings)
    streams.drain()
    # A stop that comes from here on waits for the program that follows.
    stop_signals.block()
    if stop_signals.is_stop_requested():
        return
    environment = settings.environment_variables() | {"WAKEBOARD_DATABASE_URL": url}
    os.execve(sys.executable, module_command("wakeboard_dashboard"), os.environ | environment)
