"""``user``, ``token``, ``login-link``: who may come in, and as what."""

from __future__ import annotations

import getpass
import socket
import sys
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import click

from wakeboard.accounts import sessions, tokens, users
from wakeboard.cli import reach
from wakeboard.cli.flags import CommandGroup, LeafCommand, is_json, settings
from wakeboard.cli.printing import answer, listing
from wakeboard.cli.refusals import WrongUse
from wakeboard.cli.terminal import tell
from wakeboard.config.settings import Settings
from wakeboard.core.states import Role
from wakeboard.database.audit import terminal_actor

ROLE = click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    required=True,
    help="viewer, operator or admin.",
)
STDIN = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
USERS = ("name", "role", "sessions", "created_at", "password_changed_at", "disabled_at")
TOKENS = (
    "name", "role", "job_types", "is_valid", "created_by", "created_at", "expires_at", "revoked_at",
    "used_at",
)  # fmt: skip

ANSWER_SECONDS = 2.0


@click.group(cls=CommandGroup)
def user() -> None:
    """People who sign in: add, list, role, passwd, disable, enable."""


@user.command()
@click.argument("name")
@ROLE
@STDIN
def add(name: str, role: str, password_stdin: bool) -> None:
    """Add a person; the password is asked for, or read with --password-stdin."""
    password = _password(password_stdin)
    with reach.connection() as connection:
        users.create_user(connection, terminal_actor(), name, Role(role), password)
    answer({"name": name, "role": role, "changed": True}, f"User {name} was added as {role}.")


@user.command("list")
def list_users() -> None:
    """List people, their roles and open sessions."""
    with reach.connection() as connection:
        listing(
            users.list_users(connection, settings().session_idle_seconds),
            USERS,
            "There are no users. Add one: wakeboard user add NAME --role admin",
        )


@user.command()
@click.argument("name")
@ROLE
def role(name: str, role: str) -> None:
    """Give a person another role, from the next request on."""
    with reach.connection() as connection:
        changed = users.set_role(connection, terminal_actor(), name, Role(role))
    word = "now" if changed else "already"
    answer({"name": name, "role": role, "changed": changed}, f"User {name} is {word} {role}.")


@user.command()
@click.argument("name")
@STDIN
def passwd(name: str, password_stdin: bool) -> None:
    """Set a person's password and end every session of theirs."""
    password = _password(password_stdin)
    with reach.connection() as connection:
        users.set_password(connection, terminal_actor(), name, password)
    answer({"name": name, "changed": True}, f"The password of {name} was changed; their sessions ended.")


@user.command()
@click.argument("name")
def disable(name: str) -> None:
    """Shut a person out, at once."""
    with reach.connection() as connection:
        changed = users.disable_user(connection, terminal_actor(), name)
    answer({"name": name, "changed": changed}, f"User {name} is {'' if changed else 'already '}disabled.")


@user.command()
@click.argument("name")
def enable(name: str) -> None:
    """Let a disabled person in again."""
    with reach.connection() as connection:
        changed = users.enable_user(connection, terminal_actor(), name)
    answer({"name": name, "changed": changed}, f"User {name} is {'' if changed else 'already '}enabled.")


@click.group(cls=CommandGroup)
def token() -> None:
    """API tokens: create, list, revoke."""


@token.command()
@click.argument("name")
@ROLE
@click.option("--days", type=click.IntRange(1, 3650), help="It ends after so many days [never].")
@click.option("--type", "job_types", multiple=True, help="For runs of this job type only; repeatable [all].")
def create(name: str, role: str, days: int | None, job_types: tuple[str, ...]) -> None:
    """Create a token and print it, this once."""
    types = list(dict.fromkeys(job_types)) or None
    with reach.connection() as connection:
        made = tokens.create_token(connection, terminal_actor(), name, Role(role), days, types)
        unknown = tokens.unknown_types(connection, types or [])
    answer({"token": made, "name": name, "role": role, "job_types": types}, made)
    for each in unknown:
        tell(f"No worker has registered a job type '{each}' yet; the token holds for it once one does.")
    tell("It is not shown again. Use it as: Authorization: Bearer <token>")
    if days is None:
        tell("It never expires: revoke it when nobody needs it, or make one that ends, with --days 90.")


@token.command("list")
def list_tokens() -> None:
    """List tokens, without their secrets."""
    with reach.connection() as connection:
        found = tokens.list_tokens(connection)
    if not is_json():
        found = [row | ({"expires_at": "never"} if _is_endless(row) else {}) for row in found]
    listing(found, TOKENS, "There are no tokens.")


def _is_endless(token: dict[str, Any]) -> bool:
    return token["is_valid"] and token["expires_at"] is None


@token.command()
@click.argument("name")
def revoke(name: str) -> None:
    """End a token, at once."""
    with reach.connection() as connection:
        changed = tokens.revoke_token(connection, terminal_actor(), name)
    answer({"name": name, "changed": changed}, f"Token {name} is {'' if changed else 'already '}revoked.")


@click.command(cls=LeafCommand, settings=("database_url", "data_dir", "bind", "certificate"))
def login_link() -> None:
    """Print a fresh login link: single use, 15 minutes, the role admin.

    It leads to WAKEBOARD_PUBLIC_URL when that is set and no --bind is given. Name with --bind where the
    dashboard listens when that is not the default, and with --certificate what it has for TLS of its own.
    """
    own = settings()
    is_public = own.public_url and own.origins["bind"] != "flag"
    address = str(own.public_url).rstrip("/") if is_public else base_address(own)
    with reach.connection() as connection:
        made = sessions.create_login_link(connection, os_user())
    answer({"url": f"{address}/login?token={made}", "token": made}, f"{address}/login?token={made}")
    if not is_public and not _somebody_listens(address):
        tell(f"Nothing answers at {address}. If the dashboard listens elsewhere: --bind HOST:PORT")


def _somebody_listens(address: str) -> bool:
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname, parts.port or 80), timeout=ANSWER_SECONDS).close()
    except (OSError, UnicodeError):  # A name that cannot be one is refused in the latter way.
        return False
    return True


def base_address(own: Settings) -> str:
    """Return the address at which a browser here reaches the dashboard that has these settings."""
    host, _, port = own.bind.rpartition(":")
    try:
        if ip_address(host.strip("[]")).is_unspecified:
            host = "127.0.0.1"
    except ValueError:
        pass
    return f"{'https' if own.certificate else 'http'}://{host}:{port}"


def os_user() -> str:
    """Return the name of who types."""
    return terminal_actor().name.removeprefix("cli:")


def _password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.buffer.readline(4096).decode("utf-8", "replace").rstrip("\r\n")
    if not sys.stdin.isatty():
        raise WrongUse("There is no terminal to ask for the password; use --password-stdin.")
    password = getpass.getpass("Password: ")
    if getpass.getpass("The same again: ") != password:
        raise WrongUse("The two passwords differ; nothing was changed.")
    return password
