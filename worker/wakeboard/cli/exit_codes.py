"""Exception of a command → its exit code and one sentence. Prints nothing."""

from __future__ import annotations

import sys
import traceback
from difflib import get_close_matches
from pathlib import Path

import click
import psycopg

from wakeboard.cli.exceptions import CommandFailed, WrongUse
from wakeboard.cli.flags import MissingVerb
from wakeboard.config.settings import SettingsError
from wakeboard.config.streams import redirect_to_null
from wakeboard.core.run_spec import EnqueueError
from wakeboard.core.time.cron import CronError
from wakeboard.database.db import (
    MISSING_TABLE_ERRORS,
    DatabaseError,
    UnsupportedDatabaseError,
    explain_missing_tables,
)
from wakeboard.database.embedded import EmbeddedError
from wakeboard.queue.definitions import DefinitionError
from wakeboard.queue.permission import AccountError
from wakeboard.reporting.filters.values import FilterError

WRONG_USE = (
    WrongUse, FilterError, SettingsError, EnqueueError, DefinitionError, CronError, AccountError,
    UnsupportedDatabaseError,
)  # fmt: skip
FAILED = (CommandFailed, DatabaseError, EmbeddedError)


def explain(failure: BaseException) -> tuple[int, str]:
    """Return the exit code of ``failure`` and what to say (possibly nothing)."""
    if isinstance(failure, MissingVerb):
        return 2, failure.ctx.get_help() if failure.ctx else str(failure)
    if isinstance(failure, click.NoSuchOption) and failure.ctx:
        sentence = _no_such_option(failure.option_name, failure.ctx)
        return 2, f"{sentence} See: {failure.ctx.command_path} --help"
    if isinstance(failure, click.UsageError):
        where = failure.ctx.command_path if failure.ctx else "wakeboard"
        return 2, f"{_sentence(failure.format_message())} See: {where} --help"
    if isinstance(failure, click.ClickException):
        return 2, _sentence(failure.format_message())
    if isinstance(failure, WRONG_USE):
        return 2, str(failure)
    if isinstance(failure, FAILED):
        return 1, str(failure)
    # Migrations run through SQLAlchemy, which wraps the database's error.
    error = getattr(failure, "orig", None) or failure
    if isinstance(error, psycopg.Error):
        return 1, _database_sentence(error)
    if isinstance(failure, BrokenPipeError):
        # The reader of our output is gone.
        redirect_to_null(sys.stdout)
        return 1, ""
    if isinstance(failure, OSError):
        return 1, _sentence(f"{failure.filename or 'The system'}: {failure.strerror or failure}")
    return 1, _bug_sentence(failure)


def _no_such_option(name: str, ctx: click.Context) -> str:
    """Return the sentence about an unknown option, with a similar one of the command's help page.

    Hidden options are left out: every setting is a flag of every command, and most mean nothing to it.
    """
    options = (option for option in ctx.command.get_params(ctx) if isinstance(option, click.Option))
    listed = [
        each for option in options if not option.hidden for each in (*option.opts, *option.secondary_opts)
    ]
    hint = "".join(f" Did you mean '{each}'?" for each in get_close_matches(name, listed, 1))
    return f"No such option '{name}'.{hint}"


def _database_sentence(failure: psycopg.Error) -> str:
    if isinstance(failure, MISSING_TABLE_ERRORS):
        return explain_missing_tables(failure)
    message = " ".join(str(failure).split("\n")[0].split()) or type(failure).__name__
    if isinstance(failure, psycopg.errors.InsufficientPrivilege):
        return (
            f"The database role may not do this ({message}). Use the role that owns the schema wakeboard; "
            "where there is none yet, one that may make it: GRANT CREATE ON DATABASE … TO …"
        )
    if isinstance(failure, psycopg.errors.QueryCanceled):
        return "The database took longer than 30 s and was asked to stop. Narrow the question."
    if isinstance(failure, psycopg.DataError):
        return f"The database refused a value ({message})."
    return f"The database failed: {message}. Check it with: wakeboard doctor"


def _bug_sentence(failure: BaseException) -> str:
    frames = traceback.extract_tb(failure.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    message = " ".join(str(failure).split())
    return f"This is a bug in Wakeboard: {type(failure).__name__}: {message}{where}. Please report it."


def _sentence(text: str) -> str:
    line = " ".join(text.split())
    return line if line.endswith((".", "?", "!")) else line + "."
