"""What every command understands: each setting as a flag, and ``--json``. Reads settings, opens nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from wakeboard.cli.terminal import tell
from wakeboard.config.settings import SETTINGS, Settings, default_data_dir, find_misspelt

META = "wakeboard.flags"
JSON = "wakeboard.json"
MISSPELT_PRINTED = "wakeboard.misspelt"
# Shown in the help of every command; the others in the help of what serves.
SHOWN = ("database_url", "data_dir")
_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if value not in (None, ()) and parameter.name is not None:
        given, name = ctx.meta.setdefault(META, {}), parameter.name.removeprefix("setting_")
        if isinstance(value, tuple):
            # What may be given again may have been given before the verb, too.
            value = ",".join([*filter(None, [given.get(name)]), *value])
        given[name] = value
    return value


def _remember_json(ctx: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    ctx.meta[JSON] = value or ctx.meta.get(JSON, False)
    return value


def _setting_options(shown: tuple[str, ...]) -> list[click.Option]:
    options = []
    for setting in SETTINGS:
        default = default_data_dir() if setting.name == "data_dir" else setting.default
        usual = "" if default in (None, 0.0) or setting.is_switch else f" [{default}]"
        switch = {"is_flag": True, "flag_value": "1"} if setting.is_switch else {"metavar": "VALUE"}
        options.append(
            click.Option(
                [setting.flag, f"setting_{setting.name}"],
                help=f"{setting.help}{usual}",
                multiple=setting.repeats,
                hidden=setting.name not in shown,
                expose_value=False,
                callback=_remember,
                default=None,
                **switch,
            )
        )
    return options


def _add(command: click.Command, shown: tuple[str, ...]) -> None:
    taken = {name for parameter in command.params for name in parameter.opts}
    json = click.Option(
        ["--json", "as_json"],
        is_flag=True,
        expose_value=False,
        callback=_remember_json,
        help="Print for machines.",
    )
    command.params += [o for o in [*_setting_options(shown), json] if not taken & set(o.opts)]


class LeafCommand(click.Command):
    """A command with the flags that all commands have."""

    def __init__(self, *args: Any, settings: tuple[str, ...] = SHOWN, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _add(self, settings)


class MissingVerb(click.UsageError):
    """A group was called without anything: its help page says what there is."""


class CommandGroup(click.Group):
    """A group of commands, which takes the same flags before the verb."""

    command_class = LeafCommand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _add(self, ())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``args``. Raises MissingVerb for none: what click makes of that depends on its version."""
        if not args and not ctx.resilient_parsing:
            raise MissingVerb("Missing command.", ctx)
        return super().parse_args(ctx, args)


def settings(**given: object) -> Settings:
    """Return the settings of the command that runs; ``given`` wins over flags. Raises SettingsError."""
    print_misspelt()
    return settings_alone(**given)


def settings_alone(**given: object) -> Settings:
    """Return what ``settings`` does, and print nothing."""
    flags = dict(click.get_current_context().meta.get(META, {}))
    return Settings.load(flags | {name: value for name, value in given.items() if value is not None})


def print_misspelt() -> None:
    """Print, once in a command, which variables are no settings, and what was meant."""
    meta = click.get_current_context().meta
    if not meta.get(MISSPELT_PRINTED):
        meta[MISSPELT_PRINTED] = True
        for sentence in find_misspelt():
            tell(sentence)


def is_json() -> bool:
    """Tell whether the command that runs was asked to print for machines."""
    return bool(click.get_current_context().meta.get(JSON, False))


def reason_option(command: _Decorated) -> _Decorated:
    """Give a verb the option ``--reason``, which goes to the audit log."""
    return click.option("--reason", metavar="TEXT", help="Why; goes to the audit log.")(command)
