"""The command line: ``wakeboard …``, ``python -m wakeboard …``. A module per noun, loaded when it is used.

Commands translate arguments into calls and answers into lines; they decide nothing.
Exit code 0: done. 1: failed. 2: wrong use. 130: Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from wakeboard.cli.flags import CommandGroup
from wakeboard.cli.terminal import print_notice
from wakeboard.config import stop_signals
from wakeboard.config.streams import open_standard_streams

INTERRUPTED = 130
# Command → its module, and its line on the first help page, which imports no module.
COMMANDS = {
    "up": ("up", "Run all of it on this machine: database, tables, worker with schedules, dashboard."),
    "worker": ("serving", "Run a worker: it claims runs, fires schedules and takes over what others lost."),
    "tick": ("serving", "For a crontab line: fire what is due, run until nothing is left, end."),
    "web": ("serving", "Run the dashboard alone."),
    "enqueue": ("runs", "Enqueue a run of TYPE and print its id."),
    "runs": ("runs", "List runs, newest first."),
    "run": ("runs", "Show a run: its state, why it waits, its attempts and who did what to it."),
    "retry": ("runs", "Make runs due now: out of a backoff, or back from dead and cancelled."),
    "cancel": ("runs", "Cancel runs: waiting and dead ones at once, running ones are asked to stop."),
    "again": ("runs", "Enqueue a new run like an ended one."),
    "operations": ("operations", "One move on many runs: start, list, show, pause, resume, abort."),
    "leases": ("leases", "List running runs and how their leases stand."),
    "release": ("leases", "Take runs from a worker that is silent or whose lease has ended."),
    "schedule": ("schedules", "Schedules: add, list, preview, run, pause, resume, remove."),
    "import-crontab": (
        "import_crontab",
        "Make a schedule of each line of FILE (- for standard input); a second time nothing changes.",
    ),
    "types": ("types", "Job types: list, pause, resume, pause-all, resume-all, limit, retention."),
    "workers": ("workers", "Workers: list, drain, undrain, stop."),
    "effects": ("effects", "Unconfirmed effects of once(): list, settle."),
    "alerts": ("alerts", "Alert rules: list, test, silence, edit, on, off."),
    "audit": ("audit", "List who did what, newest first."),
    "user": ("accounts", "People who sign in: add, list, role, passwd, disable, enable."),
    "token": ("accounts", "API tokens: create, list, revoke."),
    "login-link": ("accounts", "Print a fresh login link: single use, 15 minutes, the role admin."),
    "db": ("database", "The database: upgrade, check, url, shell, backup, restore, fence, stop."),
    "rehearse": (
        "rehearse",
        (
            "Rehearse the worst day: 100 receipts by real mail, 20 refused at first, a worker stopped, "
            "one killed."
        ),
    ),
    "doctor": (
        "doctor",
        "Check configuration, database, schema, workers and app; exit code 1 when something fails.",
    ),
    "config": ("doctor", "List every setting, its value and where it came from; secrets are masked."),
}


class Root(CommandGroup):
    """The root group. It imports a command when that is used: a worker loads no other code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command ``cmd_name``, None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"wakeboard.cli.commands.{COMMANDS[cmd_name][0]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with a line about each, without importing them."""
        width = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl([(name, _cut(line, width)) for name, (_, line) in COMMANDS.items()])


def _cut(line: str, width: int) -> str:
    """Return ``line``, cut at a word where it is longer than ``width``."""
    return line if len(line) <= width else line[: width - 2].rsplit(" ", 1)[0] + "..."


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="wakeboard", message="%(version)s")
def cli() -> None:
    """Wakeboard: background work on PostgreSQL, and a window onto it.

    Every setting of `wakeboard config` is also a flag; --json prints for machines.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; an error is one line on standard error, no traceback."""
    try:
        answer = cli.main(list(arguments), prog_name="wakeboard", standalone_mode=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as failure:
        if _is_interrupt(failure):
            # A process that serves has done what it was asked.
            code, line = 0 if stop_signals.is_stop_requested() else INTERRUPTED, "Stopped."
        else:
            # Loads the driver, so not after a Ctrl-C.
            from wakeboard.cli.exit_codes import explain

            code, line = explain(failure)
        if line:
            print_notice(line)
        return code
    return answer if isinstance(answer, int) else 0


def _is_interrupt(failure: BaseException | None) -> bool:
    """Return whether ``failure`` is a Ctrl-C, or was raised because of one, as an import may do."""
    while failure is not None and not isinstance(failure, (KeyboardInterrupt, click.Abort)):
        failure = failure.__cause__ or failure.__context__
    return failure is not None


def main() -> None:
    """Run this process's command line and exit."""
    open_standard_streams()
    sys.exit(run(sys.argv[1:]))
