"""The command line: ``wakeboard …``, ``python -m wakeboard …``. A file per noun, loaded when it is asked for.

Commands translate words into calls of functions elsewhere and answers into lines; they decide nothing.
Exit code 0: done. 1: failed. 2: wrong use. 130: Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from wakeboard.cli.flags import Noun
from wakeboard.cli.printing import complain
from wakeboard.cli.summaries import SUMMARIES
from wakeboard.config import stop_signals
from wakeboard.config.streams import open_closed

INTERRUPTED = 130
ROOMS = {
    "up": "up",
    "worker": "serving",
    "tick": "serving",
    "web": "serving",
    "enqueue": "runs",
    "runs": "runs",
    "run": "runs",
    "retry": "runs",
    "cancel": "runs",
    "again": "runs",
    "operations": "operations",
    "leases": "leases",
    "release": "leases",
    "schedule": "schedules",
    "import-crontab": "crontabs",
    "types": "types",
    "workers": "workers",
    "effects": "effects",
    "alerts": "alerts",
    "audit": "audit",
    "user": "people",
    "token": "people",
    "login-link": "people",
    "db": "database",
    "rehearse": "rehearsing",
    "doctor": "doctor",
    "config": "doctor",
}


class House(Noun):
    """The root: its commands are imported one by one, so that a worker process carries no other's modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help page."""
        return list(ROOMS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command ``cmd_name``, None when there is none."""
        if cmd_name not in ROOMS:
            return None
        room = import_module(f"wakeboard.cli.{ROOMS[cmd_name]}")
        found = getattr(room, cmd_name.replace("-", "_"))
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with a line about each, without importing them."""
        room = formatter.width - 6 - max(map(len, ROOMS))
        with formatter.section("Commands"):
            formatter.write_dl([(name, _within(SUMMARIES[name], room)) for name in ROOMS])


def _within(line: str, room: int) -> str:
    """Return ``line``, cut at a word where there is no room for it."""
    return line if len(line) <= room else line[: room - 2].rsplit(" ", 1)[0] + "..."


@click.group(cls=House, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
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
            # What serves has done what it was asked.
            code, line = 0 if stop_signals.was_asked() else INTERRUPTED, "Stopped."
        else:
            code, line = _explained(failure)
        complain(line)
        return code
    return answer if isinstance(answer, int) else 0


def _is_interrupt(failure: BaseException | None) -> bool:
    """Return whether ``failure`` is a Ctrl-C, or what became of one inside of an import."""
    while failure is not None and not isinstance(failure, (KeyboardInterrupt, click.Abort)):
        failure = failure.__cause__ or failure.__context__
    return failure is not None


def _explained(failure: BaseException) -> tuple[int, str]:
    """Return the exit code of ``failure`` and what to say; loads the driver, so not after a Ctrl-C."""
    from wakeboard.cli.errors import explain

    return explain(failure)


def main() -> None:
    """Run this process's command line and exit."""
    open_closed()
    sys.exit(run(sys.argv[1:]))
