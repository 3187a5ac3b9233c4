"""``user``, ``token``, ``login-link``: who may sign in, and with which role."""

from __future__ import annotations

import getpass
import socket
import sys
from ipaddress import ip_address
from urllib.parse import urlsplit

import click

from wakeboard.accounts import sessions, tokens, users
from wakeboard.cli.connection import connect
from wakeboard.cli.exceptions import WrongUse
from wakeboard.cli.flags import CommandGroup, LeafCommand, is_json, read_settings
from wakeboard.cli.printing import print_result, print_table
from wakeboard.cli.terminal import print_notice
from wakeboard.config.settings import Settings
from wakeboard.core.process import os_user
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

CONNECT_SECONDS = 2.0


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
    with connect() as connection:
        users.create_user(connection, terminal_actor(), name, Role(role), password)
    print_result({"name": name, "role": role, "changed": True}, f"User {name} was added as {role}.")


@user.command("list")
def list_users() -> None:
    """List people, their roles and open sessions."""
    with connect() as connection:
        print_table(
            users.list_users(connection, read_settings().session_idle_seconds),
            USERS,
            "There are no users. Add one: wakeboard user add NAME --role admin",
        )


@user.command()
@click.argument("name")
@ROLE
def role(name: str, role: str) -> None:
    """Give a person another role, from the next request on."""
    with connect() as connection:
        is_changed = users.set_role(connection, terminal_actor(), name, Role(role))
    word = "now" if is_changed else "already"
    print_result({"name": name, "role": role, "changed": is_changed}, f"User {name} is {word} {role}.")


@user.command()
@click.argument("name")
@STDIN
def passwd(name: str, password_stdin: bool) -> None:
    """Set a person's password and end every session of theirs."""
    password = _password(password_stdin)
    with connect() as connection:
        users.set_password(connection, terminal_actor(), name, password)
    print_result(
        {"name": name, "changed": True}, f"The password of {name} was changed; their sessions ended."
    )


@user.command()
@click.argument("name")
def disable(name: str) -> None:
    """Shut a person out, at once."""
    with connect() as connection:
        _print_change(
            name, users.disable_user(connection, terminal_actor(), name), f"User {name}", "disabled"
        )


@user.command()
@click.argument("name")
def enable(name: str) -> None:
    """Let a disabled person in again."""
    with connect() as connection:
        _print_change(name, users.enable_user(connection, terminal_actor(), name), f"User {name}", "enabled")


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
    with connect() as connection:
        secret = tokens.create_token(connection, terminal_actor(), name, Role(role), days, types)
        unknown = tokens.unknown_types(connection, types or [])
    print_result({"token": secret, "name": name, "role": role, "job_types": types}, secret)
    for each in unknown:
        print_notice(
            f"No worker has registered a job type '{each}' yet; the token holds for it once one does."
        )
    print_notice("It is not shown again. Use it as: Authorization: Bearer <token>")
    if days is None:
        print_notice(
            "It never expires: revoke it when nobody needs it, or make one that ends, with --days 90."
        )


@token.command("list")
def list_tokens() -> None:
    """List tokens, without their secrets."""
    with connect() as connection:
        rows = tokens.list_tokens(connection)
    if not is_json():
        never = {"expires_at": "never"}
        rows = [row | never if row["is_valid"] and row["expires_at"] is None else row for row in rows]
    print_table(rows, TOKENS, "There are no tokens.")


@token.command()
@click.argument("name")
def revoke(name: str) -> None:
    """End a token, at once."""
    with connect() as connection:
        _print_change(
            name, tokens.revoke_token(connection, terminal_actor(), name), f"Token {name}", "revoked"
        )


@click.command(cls=LeafCommand, settings=("database_url", "data_dir", "bind", "certificate"))
def login_link() -> None:
    """Print a fresh login link: single use, 15 minutes, the role admin.

    It leads to WAKEBOARD_PUBLIC_URL when that is set and no --bind is given. Name with --bind where the
    dashboard listens when that is not the default, and with --certificate what it has for TLS of its own.
    """
    settings = read_settings()
    is_public = settings.public_url and settings.origins["bind"] != "flag"
    address = str(settings.public_url).rstrip("/") if is_public else base_address(settings)
    with connect() as connection:
        secret = sessions.create_login_link(connection, os_user.name())
    url = f"{address}/login?token={secret}"
    print_result({"url": url, "token": secret}, url)
    if not is_public and not _is_listening(address):
        print_notice(f"Nothing answers at {address}. If the dashboard listens elsewhere: --bind HOST:PORT")


def _is_listening(address: str) -> bool:
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname, parts.port or 80), timeout=CONNECT_SECONDS).close()
    except (OSError, UnicodeError):  # The latter for text that cannot be a host name.
        return False
    return True


def base_address(settings: Settings) -> str:
    """Return the URL at which a browser on this machine reaches the dashboard with these settings."""
    host, _, port = settings.bind.rpartition(":")
    try:
        if ip_address(host.strip("[]")).is_unspecified:
            host = "127.0.0.1"
    except ValueError:
        pass
    return f"{'https' if settings.certificate else 'http'}://{host}:{port}"


def _print_change(name: str, is_changed: bool, subject: str, state: str) -> None:
    already = "" if is_changed else "already "
    print_result({"name": name, "changed": is_changed}, f"{subject} is {already}{state}.")


def _password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.buffer.readline(4096).decode("utf-8", "replace").rstrip("\r\n")
    if not sys.stdin.isatty():
        raise WrongUse("There is no terminal to ask for the password; use --password-stdin.")
    password = getpass.getpass("Password: ")
    if getpass.getpass("The same again: ") != password:
        raise WrongUse("The two passwords differ; nothing was changed.")
    return password
