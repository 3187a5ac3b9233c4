"""The OS users as whom this process may run commands.

A process runs commands as its own user. A process of root also runs them as the users that
``WAKEBOARD_RUN_AS_USERS`` names. Reads the machine's users, opens nothing.
"""

from __future__ import annotations

import os
import pwd
from typing import TypedDict

from wakeboard.config.settings import PREFIX, Settings, SettingsError
from wakeboard.core.builtin_payloads import check_user, command_type, command_user, workers_for
from wakeboard.core.outcome import Permanent

VARIABLE = f"{PREFIX}RUN_AS_USERS"


def own_user() -> str | None:
    """Return the name of the user of this process, None for a number without a name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None


def command_types() -> list[str]:
    """Return the job types of the users as whom this process may run commands."""
    users = [own_user(), *_extra_users()]
    return [command_type(user) for user in dict.fromkeys(users) if user is not None]


def check(settings: Settings) -> None:
    """Raise SettingsError unless a worker with these settings can become each user that they name."""
    users = _names(settings.run_as_users)
    if users and os.geteuid() != 0:
        raise SettingsError(
            f"{VARIABLE} is '{settings.run_as_users}', and only root can become another user: start the "
            f"worker as root, or take {VARIABLE} out and start a worker as each of these users."
        )
    for user in users:
        if (entry := _entry(user)) is None:
            raise SettingsError(f"{VARIABLE} names '{user}', and there is no such user on this machine.")
        if entry.pw_uid == 0:
            raise SettingsError(
                f"{VARIABLE} names '{user}', which is root: a worker of root runs root's commands anyway. "
                "Take it out."
            )


def account(job_type: str) -> pwd.struct_passwd | None:
    """Return the user that a run of ``job_type`` becomes, None where it runs as the user of this process.

    Raises Permanent: ``user_unknown``, or ``user_not_allowed`` where this process may not run for that user.
    """
    user = command_user(job_type)
    if user is None or user == own_user():
        return None
    check_user(user)
    if os.geteuid() != 0 or user not in _extra_users():
        own = own_user() or f"the user of number {os.geteuid()}"
        raise Permanent(
            "user_not_allowed",
            f"This is a command of '{user}', and its worker runs as '{own}', which may not run it: "
            f"start {workers_for([user])}.",
        )
    entry = _entry(user)
    if entry is None:
        raise Permanent("user_unknown", f"There is no user '{user}' on this machine to run the command as.")
    if entry.pw_uid == 0:
        raise Permanent(
            "user_not_allowed", f"'{user}' is another name of root, whose commands have the type of 'root'."
        )
    return entry


class PopenUser(TypedDict, total=False):
    """The arguments of ``subprocess.Popen`` about users."""

    user: int
    group: int
    extra_groups: list[int]


def popen_options(user: pwd.struct_passwd | None) -> PopenUser:
    """Return the arguments of ``subprocess.Popen`` to become ``user`` with all of its groups."""
    if user is None:
        return PopenUser()
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": groups}


def _extra_users() -> list[str]:
    """Return the users that WAKEBOARD_RUN_AS_USERS allows to this process."""
    return _names(os.environ.get(VARIABLE)) if os.geteuid() == 0 else []


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _entry(user: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        return None
