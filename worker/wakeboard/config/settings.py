"""Settings: read once from ``WAKEBOARD_…`` variables and flags, checked together, then frozen.

Knows no database and starts nothing. Every wrong value is reported, each in one line that names the
variable, the value and what is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import wakeboard.config.setting_types as kinds
from wakeboard.core.process.os_user import home

PREFIX = "WAKEBOARD_"
SECRETS = frozenset(
    {
        "database_url",
        "read_database_url",
        "heartbeat_url",
        "smtp_url",
        "alert_webhook_url",
        "alert_webhook_secret",
    }
)

# Of these all but the password may be told: which server it is, is what one looks for.
PLACES = frozenset({"database_url", "read_database_url", "smtp_url"})
HIDDEN = "***"
# No settings: what a command is told of its run, and where the tests find a server.
NO_SETTINGS = frozenset(
    PREFIX + name for name in ("RUN_ID", "ATTEMPT", "KEY", "SCHEDULED_FOR", "TEST_DATABASE_URL")
)
# How alike a name must be to a setting's to be taken for it, misspelt: 1 is the same.
ALIKE = 0.8


class SettingsError(ValueError):
    """One or more settings are wrong; ``str()`` has one line for each."""


def default_data_dir() -> Path:
    """Return the folder of cluster and keys: ``/var/lib/wakeboard`` as root, else the user's data folder."""
    if os.geteuid() == 0:
        return Path("/var/lib/wakeboard")
    folder = os.environ.get("XDG_DATA_HOME") or home() / ".local" / "share"
    return Path(folder) / "wakeboard"


@dataclass(frozen=True, slots=True)
class Setting:
    """What there is to know of one setting.

    ``read`` makes its value of text; ``allowed`` says which text, ``help`` what it is for. A flag with
    ``repeats`` may be given again, each time with one of its values.
    """

    name: str
    flag: str
    read: Callable[[str], Any]
    allowed: str
    help: str
    default: object
    repeats: bool

    @property
    def variable(self) -> str:
        """The variable of the environment that holds it."""
        return PREFIX + self.name.upper()

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.read is kinds.switch


def _setting(
    read: Callable[[str], Any],
    allowed: str,
    default: Any = None,
    factory: Any = None,
    *,
    says: str | None = None,
    each: str | None = None,
) -> Any:
    """Return a field of Settings; ``says`` is its help where ``allowed`` says too little.

    ``each``: the flag, which may be given again, is of one of its values, and has this name.
    """
    options: dict[str, Any] = {"default": default} if factory is None else {"default_factory": factory}
    # Addresses carry passwords, and a repr ends up in tracebacks.
    shown = read not in (kinds.conninfo, kinds.web_url, kinds.mail_server, kinds.secret)
    return field(**options, repr=shown, metadata={"given": (read, allowed, says or allowed, each)})


def _described(entry: Field[Any]) -> Setting:
    read, allowed, says, each = entry.metadata["given"]
    default = None if entry.default is MISSING else entry.default
    flag = "--" + (each or entry.name).replace("_", "-")
    return Setting(entry.name, flag, read, allowed, says, default, repeats=each is not None)


_SWITCH = "1 or 0 (also on/off, yes/no, true/false)"
_DAYS = "whole days from 1 to 36500, or 0 for ever, that"


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. Durations are in seconds, sizes in bytes; None means not set."""

    database_url: str | None = _setting(
        kinds.conninfo,
        "a libpq URL (in its password @ : / as %40 %3A %2F) or key=value string; "
        "unset starts the embedded server",
    )
    read_database_url: str | None = _setting(kinds.conninfo, "a libpq URL of a replica for the pages")
    data_dir: Path = _setting(kinds.path, "a folder", factory=default_data_dir)  # noqa: RUF009
    app: str | None = _setting(
        kinds.module,
        "the name of a Python module with the handlers, not of a file: jobs or shop.jobs",
        says="the name of a Python module with the handlers",
    )
    bind: str = _setting(kinds.bind, "HOST:PORT with a port from 0 to 65535", "127.0.0.1:8080")
    hosts: str | None = _setting(
        kinds.names,
        "host names without scheme and port, separated by commas",
        says="a further name people reach the dashboard by; repeatable, instead of WAKEBOARD_HOSTS",
        each="host",
    )
    behind_tls_proxy: bool = _setting(
        kinds.switch, _SWITCH, False, says="one proxy in front does TLS and sets X-Forwarded-*"
    )
    certificate: Path | None = _setting(kinds.path, "a PEM file, for TLS of our own")  # noqa: RUF009
    certificate_key: Path | None = _setting(kinds.path, "a PEM file with its private key")  # noqa: RUF009
    web_processes: int = _setting(kinds.whole(1, 64), "a whole number from 1 to 64", 2)
    web_threads: int = _setting(kinds.whole(1, 256), "a whole number from 1 to 256", 8)
    concurrency: int = _setting(
        kinds.whole(1, 1000), "a whole number from 1 to 1000", factory=lambda: max(2, os.cpu_count() or 2)
    )
    lease_seconds: float = _setting(kinds.number(1, 86_400), "seconds from 1 to 86400", 30.0)
    heartbeat_seconds: float = _setting(kinds.number(0.25, 43_200), "seconds from lease/4 to lease/2", 0.0)
    poll_seconds: float = _setting(kinds.number(0.05, 3600), "seconds from 0.05 to 3600", 2.0)
    shutdown_seconds: float = _setting(kinds.number(0, 86_400), "seconds from 0 to 86400", 25.0)
    kill_seconds: float = _setting(kinds.number(0, 3600), "seconds from 0 to 3600", 5.0)
    child_exit_seconds: float = _setting(
        kinds.number(0, 86_400), "seconds from 0 to WAKEBOARD_SHUTDOWN_SECONDS", 2.0
    )
    payload_bytes: int = _setting(
        kinds.whole(2, 1_048_576), "a whole number of bytes from 2 to 1048576", 65_536
    )
    timezone: str = _setting(kinds.zone, "a time zone name such as Europe/Paris", "UTC")
    environment: str | None = _setting(str, "a name and a colour, such as 'production red'")
    log_format: str = _setting(kinds.one_of("text", "json"), "text or json", "text")
    log_level: str = _setting(kinds.one_of("info", "warning", "error"), "info, warning or error", "info")
    log_moves: str = _setting(
        kinds.moves,
        "all, failures, or 1/N for one run in N; after commas the same for a type: 1/100,send_invoice=all",
        "all",
        says="which claims and successes are logged: all, failures (none of them), 1/N, TYPE=1/N",
    )
    keep_succeeded_days: int = _setting(kinds.whole(0, 36_500), f"{_DAYS} succeeded runs are kept", 14)
    keep_dead_days: int = _setting(kinds.whole(0, 36_500), f"{_DAYS} dead and cancelled runs are kept", 90)
    keep_audit_days: int = _setting(kinds.whole(0, 36_500), f"{_DAYS} audit rows are kept", 365)
    session_seconds: float = _setting(
        kinds.number(300, 2_592_000), "seconds from 300 to 2592000 (30 days)", 43_200.0
    )
    session_idle_seconds: float = _setting(
        kinds.number(60, 2_592_000), "seconds from 60 to 2592000 (30 days)", 1_800.0
    )
    allow_commands: bool = _setting(kinds.switch, _SWITCH, False)
    run_as_users: str | None = _setting(
        kinds.users,
        "names of OS users, separated by commas",
        says="OS users, separated by commas, whose commands a worker of root runs as them",
    )
    heartbeat_url: str | None = _setting(kinds.web_url, "an http or https URL")
    public_url: str | None = _setting(
        kinds.web_url, "the dashboard's http or https URL, for links in messages"
    )
    alert_mail: str | None = _setting(kinds.addresses, "mail addresses, separated by commas")
    alert_from: str | None = _setting(kinds.address, "one mail address; unset: wakeboard@ this host's name")
    smtp_url: str | None = _setting(
        kinds.mail_server, "smtp://, smtp+starttls:// or smtps://[user:password@]host[:port]"
    )
    alert_webhook_url: str | None = _setting(kinds.web_url, "an http or https URL")
    alert_webhook_secret: str | None = _setting(kinds.secret, f"{kinds.SHORTEST_SECRET} characters or more")
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def load(
        cls, flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
    ) -> Settings:
        """Return the settings from ``flags`` (None is unset), else the environment, else the defaults.

        Raises SettingsError with one line per wrong value.
        """
        environ = os.environ if environ is None else environ
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        wrong: list[str] = []
        for setting in SETTINGS:
            if setting.name in given:
                text, origin, label = str(given[setting.name]), "flag", setting.flag
            elif environ.get(setting.variable):
                text, origin, label = environ[setting.variable], "environment", setting.variable
            else:
                origins[setting.name] = "default"
                continue
            origins[setting.name] = origin
            try:
                values[setting.name] = setting.read(text)
            except (ValueError, KeyError) as refused:
                shown = HIDDEN if setting.name in SECRETS else repr(text)
                meant = refused.meant if isinstance(refused, kinds.MisreadSetting) else None
                hint = f" Did you mean {meant}?" if meant else ""
                wrong.append(f"{label} is {shown}; allowed: {setting.allowed}.{hint}")
        if wrong:
            raise SettingsError("\n".join(wrong))
        return _with_both_halves(_with_child_exit(_with_heartbeat(cls(**values, origins=origins))))

    @property
    def alert_channels(self) -> tuple[str, ...]:
        """The channels that alerts may go to: of ``mail`` and ``webhook`` those that are set."""
        given = (("mail", self.alert_mail), ("webhook", self.alert_webhook_url))
        return tuple(name for name, value in given if value)

    def rows(self) -> list[dict[str, str | None]]:
        """Return ``{"name", "value", "origin"}`` for each setting, secrets masked."""
        return [
            {"name": PREFIX + name.upper(), "value": _shown(name, getattr(self, name)), "origin": origin}
            for name, origin in self.origins.items()
        ]

    def environment_variables(self) -> dict[str, str]:
        """Return the settings as ``WAKEBOARD_…`` variables, for a process that we start; it finds defaults
        itself, and says so where it lists its settings."""
        plain = type(self).load({}, environ={})
        values = {
            name: getattr(self, name)
            for name, origin in self.origins.items()
            if origin != "default" or getattr(self, name) != getattr(plain, name)
        }
        return {
            PREFIX + name.upper(): ("1" if value is True else "0" if value is False else str(value))
            for name, value in values.items()
            if value is not None
        }


# Every setting there is, in the order of Settings.
SETTINGS = tuple(_described(entry) for entry in fields(Settings) if entry.metadata)


def _shown(name: str, value: Any) -> str | None:
    """Return a setting's value as people may see it."""
    if value is None or name not in SECRETS:
        return None if value is None else str(value)
    return without_password(value) if name in PLACES else HIDDEN


def without_password(url: str) -> str:
    """Return ``url`` with its password masked; all of it is where one cannot tell what is the password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    who, at, where = parts.netloc.rpartition("@")
    name, colon, _ = who.partition(":")
    # A raw / ? or # in a password ends what is before the @ too early.
    if not parts.scheme or "@" in f"{parts.path}{parts.query}{parts.fragment}":
        return HIDDEN
    told = [
        (key, HIDDEN if "password" in key.lower() else text)
        for key, text in parse_qsl(parts.query, keep_blank_values=True)
    ]
    query = f"?{urlencode(told, safe='/*:,')}" if told else ""
    return f"{parts.scheme}://{name}{f':{HIDDEN}' if colon else ''}{at}{where}{parts.path}{query}"


def misspelt(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each variable that looks like one of ours and is no setting: nobody reads it.

    What is not like any setting's name may be somebody's own, and is not told.
    """
    names = [setting.variable for setting in SETTINGS]
    given = os.environ if environ is None else environ
    unread = sorted({name for name in given if name.startswith(PREFIX)} - NO_SETTINGS.union(names))
    if not unread:
        return []
    from difflib import get_close_matches

    prefix = len(PREFIX)
    return [
        f"{name} is no setting, so nobody reads it. Did you mean {PREFIX}{meant}?"
        for name in unread
        for meant in get_close_matches(name[prefix:], [known[prefix:] for known in names], 1, ALIKE)
    ]


def _with_heartbeat(settings: Settings) -> Settings:
    """Fill the default heartbeat (a third of the lease) or refuse one outside lease/4 … lease/2."""
    lease, heartbeat = settings.lease_seconds, settings.heartbeat_seconds
    if heartbeat == 0.0:
        return replace(settings, heartbeat_seconds=lease / 3)
    if not lease / 4 <= heartbeat <= lease / 2:
        raise SettingsError(
            f"WAKEBOARD_HEARTBEAT_SECONDS is {heartbeat:g}; allowed: from {lease / 4:g} to {lease / 2:g}, "
            f"a quarter to a half of the lease of {lease:g} s."
        )
    return settings


def _with_child_exit(settings: Settings) -> Settings:
    """Keep the time for a child's end within the shutdown's; refuse one that was given and does not fit."""
    seconds, whole = settings.child_exit_seconds, settings.shutdown_seconds
    if seconds <= whole:
        return settings
    if settings.origins.get("child_exit_seconds") == "default":
        return replace(settings, child_exit_seconds=whole)
    raise SettingsError(
        f"WAKEBOARD_CHILD_EXIT_SECONDS is {seconds:g}; allowed: from 0 to {whole:g}, the time of "
        "WAKEBOARD_SHUTDOWN_SECONDS, of which it is a part."
    )


def _with_both_halves(settings: Settings) -> Settings:
    """Refuse what is nothing by itself: mail without a server or to nobody, a key without what it is for."""
    for given, wanted, why in (
        ("alert_mail", "smtp_url", "which mail server takes alerts"),
        ("alert_webhook_url", "alert_webhook_secret", "the key that signs alerts"),
        ("smtp_url", "alert_mail", "to whom alerts go"),
        ("alert_webhook_secret", "alert_webhook_url", "where alerts go"),
        ("certificate_key", "certificate", "which certificate the key is for"),
    ):
        if getattr(settings, given) is not None and getattr(settings, wanted) is None:
            raise SettingsError(
                f"{PREFIX}{given.upper()} is set and {PREFIX}{wanted.upper()} is not; "
                f"set it too: it says {why}."
            )
    return settings
