"""Settings: read once from ``WAKEBOARD_…`` variables and flags, checked together, then frozen.

The fields of ``Settings`` are the only list of what exists: variables, flags, ``wakeboard config`` and the
check for misspelt variables follow from it. Every wrong value is reported, in one line that names the
variable, the value and what is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from wakeboard.config import setting_types
from wakeboard.core.process.os_user import home

PREFIX = "WAKEBOARD_"
# Values of these types are masked; of the URLs of servers only the password.
SERVER_URLS = (setting_types.conninfo, setting_types.mail_server)
SECRETS = (*SERVER_URLS, setting_types.secret, setting_types.secret_url)
HIDDEN = "***"
# Variables that are no settings: those of a command's run, and the server of the tests.
OTHER_VARIABLES = frozenset(
    PREFIX + name for name in ("RUN_ID", "ATTEMPT", "KEY", "SCHEDULED_FOR", "TEST_DATABASE_URL")
)
# From which similarity on a variable counts as a misspelt setting; 1 is equality.
LEAST_SIMILARITY = 0.8


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
    """A setting: ``purpose`` is what it is for, ``read`` parses its text, ``allowed`` describes that text.

    A flag that ``repeats`` may be given again, each time with one of its values.
    """

    name: str
    flag: str
    purpose: str
    read: Callable[[str], object]
    allowed: str
    default: object
    repeats: bool

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.name.upper()

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.read is setting_types.switch

    def show(self, value: object) -> str | None:
        """Return ``value`` as people may see it."""
        if value is None or self.read not in SECRETS:
            return None if value is None else str(value)
        return mask_password(str(value)) if self.read in SERVER_URLS else HIDDEN


def _setting(
    purpose: str,
    read: Callable[[str], object],
    allowed: str,
    default: object = None,
    factory: Callable[[], object] | None = None,
    *,
    each: str | None = None,
) -> Any:
    """Return a field of Settings; ``purpose`` stands in ``--help`` and in docs/reference.md.

    ``each`` is the name of a flag that may be repeated, with one of the values each time.
    """
    options: dict[str, Any] = {"default": default} if factory is None else {"default_factory": factory}
    metadata = {"setting": (purpose, read, allowed, each)}
    # A repr ends up in tracebacks.
    return field(**options, repr=read not in SECRETS, metadata=metadata)


def _setting_of(entry: Field[object]) -> Setting:
    purpose, read, allowed, each = entry.metadata["setting"]
    default = None if entry.default is MISSING else entry.default
    flag = "--" + (each or entry.name).replace("_", "-")
    return Setting(entry.name, flag, purpose, read, allowed, default, repeats=each is not None)


_SWITCH = "1 or 0 (also on/off, yes/no, true/false)"
_DAYS = "whole days from 1 to 36500, or 0 for ever, that"
SESSION_SECONDS, SESSION_IDLE_SECONDS = 43_200.0, 1_800.0


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. Durations are in seconds, sizes in bytes; None means not set."""

    database_url: str | None = _setting(
        "where the tables are; several hosts: the one that takes writes",
        setting_types.conninfo,
        "a libpq URL (in its password @ : / as %40 %3A %2F) or key=value string; "
        "unset starts the embedded server",
    )
    read_database_url: str | None = _setting(
        "pages read there, verbs and claims do not",
        setting_types.conninfo,
        "a libpq URL of a replica for the pages",
    )
    data_dir: Path = _setting(  # noqa: RUF009
        "the embedded database, backups and keys", setting_types.path, "a folder", factory=default_data_dir
    )
    app: str | None = _setting(
        "the handlers of a worker",
        setting_types.module,
        "the name of a Python module with the handlers, not of a file: jobs or shop.jobs",
    )
    bind: str = _setting(
        "where the dashboard listens",
        setting_types.bind,
        "HOST:PORT with a port from 0 to 65535",
        "127.0.0.1:8080",
    )
    hosts: str | None = _setting(
        "the names by which people reach the dashboard",
        setting_types.names,
        "host names without scheme and port, separated by commas",
        each="host",
    )
    behind_tls_proxy: bool = _setting(
        "one proxy in front does TLS and sets X-Forwarded-*", setting_types.switch, _SWITCH, False
    )
    certificate: Path | None = _setting(  # noqa: RUF009
        "TLS without a proxy", setting_types.path, "a PEM file, for TLS of our own"
    )
    certificate_key: Path | None = _setting(  # noqa: RUF009
        "the key, where the file of the certificate does not hold it",
        setting_types.path,
        "a PEM file with its private key",
    )
    web_processes: int = _setting(
        "processes of the dashboard; each has its own database connections",
        setting_types.whole(1, 64),
        "a whole number from 1 to 64",
        2,
    )
    web_threads: int = _setting(
        "requests that each process of the dashboard answers at once",
        setting_types.whole(1, 256),
        "a whole number from 1 to 256",
        8,
    )
    concurrency: int = _setting(
        "how many runs a worker has under way",
        setting_types.whole(1, 1000),
        "a whole number from 1 to 1000",
        factory=lambda: max(2, os.cpu_count() or 2),
    )
    lease_seconds: float = _setting(
        "how long a run belongs to a silent worker",
        setting_types.number(1, 86_400),
        "seconds from 1 to 86400",
        30.0,
    )
    heartbeat_seconds: float = _setting(
        "how often leases are renewed",
        setting_types.number(0.25, 43_200),
        "seconds from lease/4 to lease/2",
        0.0,
    )
    poll_seconds: float = _setting(
        "how often a worker looks where no notification comes",
        setting_types.number(0.05, 3600),
        "seconds from 0.05 to 3600",
        2.0,
    )
    shutdown_seconds: float = _setting(
        "how long runs may go on after SIGTERM",
        setting_types.number(0, 86_400),
        "seconds from 0 to 86400",
        25.0,
    )
    kill_seconds: float = _setting(
        "from SIGTERM to SIGKILL; of a cancel, from the request to SIGTERM too",
        setting_types.number(0, 3600),
        "seconds from 0 to 3600",
        5.0,
    )
    child_exit_seconds: float = _setting(
        "how long a process for handlers may take to end: threads, atexit, hooks",
        setting_types.number(0, 86_400),
        "seconds from 0 to WAKEBOARD_SHUTDOWN_SECONDS",
        2.0,
    )
    payload_bytes: int = _setting(
        "the longest payload, as JSON in UTF-8",
        setting_types.whole(2, 1_048_576),
        "a whole number of bytes from 2 to 1048576",
        65_536,
    )
    timezone: str = _setting(
        "times on pages and in messages, and what a night is",
        setting_types.zone,
        "a time zone name such as Europe/Paris",
        "UTC",
    )
    environment: str | None = _setting(
        "a word in the bar of each page, so that nobody mistakes production",
        str,
        "a name and a colour, such as 'production red'",
    )
    log_format: str = _setting(
        "how the log is written; JSON has one object a line",
        setting_types.one_of("text", "json"),
        "text or json",
        "text",
    )
    log_level: str = _setting(
        "what is logged; moves of runs are info",
        setting_types.one_of("info", "warning", "error"),
        "info, warning or error",
        "info",
    )
    log_moves: str = _setting(
        "which claims and successes are logged; what goes wrong always is",
        setting_types.moves,
        "all, failures, or 1/N for one run in N; after commas the same for a type: 1/100,send_invoice=all",
        "all",
    )
    keep_succeeded_days: int = _setting(
        "retention; a type may have its own",
        setting_types.whole(0, 36_500),
        f"{_DAYS} succeeded runs are kept",
        14,
    )
    keep_dead_days: int = _setting(
        "retention; a type may have its own",
        setting_types.whole(0, 36_500),
        f"{_DAYS} dead and cancelled runs are kept",
        90,
    )
    keep_audit_days: int = _setting(
        "retention of who did what", setting_types.whole(0, 36_500), f"{_DAYS} audit rows are kept", 365
    )
    session_seconds: float = _setting(
        "how long a sign-in lasts",
        setting_types.number(300, 2_592_000),
        "seconds from 300 to 2592000 (30 days)",
        SESSION_SECONDS,
    )
    session_idle_seconds: float = _setting(
        "how long a sign-in lasts without a click; pages that only stay open count as none",
        setting_types.number(60, 2_592_000),
        "seconds from 60 to 2592000 (30 days)",
        SESSION_IDLE_SECONDS,
    )
    allow_commands: bool = _setting(
        "whether a payload may say what command and http do", setting_types.switch, _SWITCH, False
    )
    run_as_users: str | None = _setting(
        "OS users whose commands (command:NAME) a worker of root runs, as them",
        setting_types.users,
        "names of OS users, separated by commas",
    )
    heartbeat_url: str | None = _setting(
        "called while all is well, for a watchdog elsewhere", setting_types.secret_url, "an http or https URL"
    )
    public_url: str | None = _setting(
        "what links in messages begin with",
        setting_types.web_url,
        "the dashboard's http or https URL, for links in messages",
    )
    alert_mail: str | None = _setting(
        "who gets alerts and reports", setting_types.addresses, "mail addresses, separated by commas"
    )
    alert_from: str | None = _setting(
        "from whom alerts and reports come",
        setting_types.address,
        "one mail address; unset: wakeboard@ this host's name",
    )
    smtp_url: str | None = _setting(
        "the mail server for alerts and reports",
        setting_types.mail_server,
        "smtp://, smtp+starttls:// or smtps://[user:password@]host[:port]",
    )
    alert_webhook_url: str | None = _setting(
        "what else gets alerts", setting_types.secret_url, "an http or https URL"
    )
    alert_webhook_secret: str | None = _setting(
        "signs the alerts that the webhook gets",
        setting_types.secret,
        f"{setting_types.SHORTEST_SECRET} characters or more",
    )
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
            except (ValueError, KeyError) as error:
                shown = HIDDEN if setting.read in SECRETS else repr(text)
                suggestion = error.suggestion if isinstance(error, setting_types.InvalidSetting) else None
                hint = f" Did you mean {suggestion}?" if suggestion else ""
                wrong.append(f"{label} is {shown}; allowed: {setting.allowed}.{hint}")
        if wrong:
            raise SettingsError("\n".join(wrong))
        return _with_pairs(_with_child_exit(_with_heartbeat(cls(**values, origins=origins))))

    @property
    def alert_channels(self) -> tuple[str, ...]:
        """The channels that are set up for alerts, of ``mail`` and ``webhook``."""
        targets = {"mail": self.alert_mail, "webhook": self.alert_webhook_url}
        return tuple(name for name, target in targets.items() if target)

    def rows(self) -> list[dict[str, str | None]]:
        """Return ``{"name", "value", "origin"}`` for each setting, secrets masked."""
        return [
            {
                "name": setting.variable,
                "value": setting.show(getattr(self, setting.name)),
                "origin": self.origins[setting.name],
            }
            for setting in SETTINGS
        ]

    def environment_variables(self) -> dict[str, str]:
        """Return the settings as ``WAKEBOARD_…`` variables for a child process, without the defaults.

        The child reads those itself, and lists them as defaults.
        """
        defaults = type(self).load({}, environ={})
        variables: dict[str, str] = {}
        for setting in SETTINGS:
            value = getattr(self, setting.name)
            is_default = self.origins.get(setting.name) == "default" and value == getattr(
                defaults, setting.name
            )
            if value is not None and not is_default:
                variables[setting.variable] = str(int(value)) if isinstance(value, bool) else str(value)
        return variables


# Every setting, in the order of Settings.
SETTINGS = tuple(_setting_of(entry) for entry in fields(Settings) if entry.metadata)


def mask_password(url: str) -> str:
    """Return ``url`` with its password masked, or HIDDEN where it is unclear what the password is."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    user_info, at, host = parts.netloc.rpartition("@")
    user, colon, _ = user_info.partition(":")
    # An unescaped / ? or # in a password ends the host part early.
    if not parts.scheme or "@" in f"{parts.path}{parts.query}{parts.fragment}":
        return HIDDEN
    parameters = [
        (key, HIDDEN if "password" in key.lower() else text)
        for key, text in parse_qsl(parts.query, keep_blank_values=True)
    ]
    query = f"?{urlencode(parameters, safe='/*:,')}" if parameters else ""
    return f"{parts.scheme}://{user}{f':{HIDDEN}' if colon else ''}{at}{host}{parts.path}{query}"


def find_misspelt(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each ``WAKEBOARD_…`` variable that nobody reads and that is similar to a setting.

    Other variables with the prefix may be the user's own.
    """
    variables = [setting.variable for setting in SETTINGS]
    given = os.environ if environ is None else environ
    unread = sorted({name for name in given if name.startswith(PREFIX)} - OTHER_VARIABLES.union(variables))
    if not unread:
        return []
    from difflib import get_close_matches

    names = [variable.removeprefix(PREFIX) for variable in variables]
    return [
        f"{name} is no setting, so nobody reads it. Did you mean {PREFIX}{similar}?"
        for name in unread
        for similar in get_close_matches(name.removeprefix(PREFIX), names, 1, LEAST_SIMILARITY)
    ]


def _with_heartbeat(settings: Settings) -> Settings:
    """Fill in the default heartbeat, a third of the lease; refuse one outside lease/4 … lease/2."""
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
    """Cut the default time for a child's exit to the shutdown's; refuse a longer one that was set."""
    seconds, shutdown_seconds = settings.child_exit_seconds, settings.shutdown_seconds
    if seconds <= shutdown_seconds:
        return settings
    if settings.origins.get("child_exit_seconds") == "default":
        return replace(settings, child_exit_seconds=shutdown_seconds)
    raise SettingsError(
        f"WAKEBOARD_CHILD_EXIT_SECONDS is {seconds:g}; allowed: from 0 to {shutdown_seconds:g}, the time of "
        "WAKEBOARD_SHUTDOWN_SECONDS, of which it is a part."
    )


def _with_pairs(settings: Settings) -> Settings:
    """Refuse a setting without its other half, such as mail without a server or a recipient."""
    for name, other, purpose in (
        ("alert_mail", "smtp_url", "which mail server takes alerts"),
        ("alert_webhook_url", "alert_webhook_secret", "the key that signs alerts"),
        ("smtp_url", "alert_mail", "to whom alerts go"),
        ("alert_webhook_secret", "alert_webhook_url", "where alerts go"),
        ("certificate_key", "certificate", "which certificate the key is for"),
    ):
        if getattr(settings, name) is not None and getattr(settings, other) is None:
            raise SettingsError(
                f"{PREFIX}{name.upper()} is set and {PREFIX}{other.upper()} is not; "
                f"set it too: it says {purpose}."
            )
    return settings
