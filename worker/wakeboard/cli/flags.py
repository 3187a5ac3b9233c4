"""The flags of every command: each setting of ``config.settings``, and ``--json``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from wakeboard.cli.terminal import print_notice
from wakeboard.config.settings import SETTINGS, Settings, default_data_dir, find_misspelt

# Keys of click's ``Context.meta``, which a command shares with its groups.
FLAGS = "wakeboard.flags"
JSON = "wakeboard.json"
MISSPELT_PRINTED = "wakeboard.misspelt"
# Settings in the help of every command; the others are in the help of processes that serve.
SHOWN = ("database_url", "data_dir")
_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def _store_flag(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if value not in (None, ()) and parameter.name is not None:
        flags, name = ctx.meta.setdefault(FLAGS, {}), parameter.name.removeprefix("setting_")
        if isinstance(value, tuple):
            # A flag that repeats may also have been given to the group, before the verb.
            value = ",".join([*filter(None, [flags.get(name)]), *value])
        flags[name] = value
    return value


def _store_json(ctx: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    ctx.meta[JSON] = value or ctx.meta.get(JSON, False)
    return value


def _setting_options(shown: tuple[str, ...]) -> list[click.Option]:
    options = []
    for setting in SETTINGS:
        default = default_data_dir() if setting.name == "data_dir" else setting.default
        default_text = "" if default in (None, 0.0) or setting.is_switch else f" [{default}]"
        kind = {"is_flag": True, "flag_value": "1"} if setting.is_switch else {"metavar": "VALUE"}
        takes = "" if setting.is_switch else f" Takes {setting.allowed}{default_text}."
        again = " May be given again." if setting.repeats else ""
        options.append(
            click.Option(
                [setting.flag, f"setting_{setting.name}"],
                help=f"{setting.purpose[0].upper()}{setting.purpose[1:]}.{takes}{again}",
                multiple=setting.repeats,
                hidden=setting.name not in shown,
                expose_value=False,
                callback=_store_flag,
                default=None,
                **kind,
            )
        )
    return options


def _add_flags(command: click.Command, shown: tuple[str, ...]) -> None:
    taken = {name for parameter in command.params for name in parameter.opts}
    json = click.Option(
        ["--json", "as_json"],
        is_flag=True,
        expose_value=False,
        callback=_store_json,
        help="Print for machines.",
    )
    command.params += [o for o in [*_setting_options(shown), json] if not taken & set(o.opts)]


class LeafCommand(click.Command):
    """A command with the flags that all commands have."""

    def __init__(self, *args: Any, settings: tuple[str, ...] = SHOWN, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _add_flags(self, settings)


class MissingVerb(click.UsageError):
    """A group was called without a verb: its help page is shown."""


class CommandGroup(click.Group):
    """A group of commands, which takes the same flags in front of the verb."""

    command_class = LeafCommand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _add_flags(self, ())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``args``. Raises MissingVerb for none, which versions of click handle differently."""
        if not args and not ctx.resilient_parsing:
            raise MissingVerb("Missing command.", ctx)
        return super().parse_args(ctx, args)


def read_settings(**given: object) -> Settings:
    """Return the settings of the current command; ``given`` wins over flags. Raises SettingsError.

    Variables that look like misspelt settings are printed once.
    """
    print_misspelt()
    return load_settings(**given)


def load_settings(**given: object) -> Settings:
    """Return what ``read_settings`` does, and print nothing."""
    flags = dict(click.get_current_context().meta.get(FLAGS, {}))
    return Settings.load(flags | {name: value for name, value in given.items() if value is not None})


def print_misspelt() -> None:
    """Print, once in a command, which variables look like misspelt settings."""
    meta = click.get_current_context().meta
    if not meta.get(MISSPELT_PRINTED):
        meta[MISSPELT_PRINTED] = True
        for sentence in find_misspelt():
            print_notice(sentence)


def is_json() -> bool:
    """Return whether the current command has ``--json``."""
    return bool(click.get_current_context().meta.get(JSON, False))


def reason_option(command: _Decorated) -> _Decorated:
    """Add the option ``--reason``, which goes to the audit log."""
    return click.option("--reason", metavar="TEXT", help="Why; goes to the audit log.")(command)
