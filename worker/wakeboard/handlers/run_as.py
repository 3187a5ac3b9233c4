"""As which OS users this process may run commands, and what becoming one of them takes.

A process runs commands as its own user. One of root runs them also as the users that
``WAKEBOARD_RUN_AS_USERS`` names, and becomes that user for the run. Reads the machine's users, opens nothing.
"""

from __future__ import annotations

import os
import pwd
from typing import Any

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
    users = [own_user(), *_others()]
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
    if os.geteuid() != 0 or user not in _others():
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


def popen_options(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """Return what ``subprocess.Popen`` takes to become ``user`` with all of their groups; None: nothing."""
    if user is None:
        return {}
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": groups}


def _others() -> list[str]:
    """Return the users beside its own that this process was told to run commands as."""
    return _names(os.environ.get(VARIABLE)) if os.geteuid() == 0 else []


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _entry(user: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        return None
