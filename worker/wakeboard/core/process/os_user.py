"""OS users: valid names, and the user of this process, which in a container often has no name."""

from __future__ import annotations

import os
import re
from pathlib import Path

# A number is no name: it means different users on different machines.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]*\$?")


def is_user_name(text: str) -> bool:
    """Return whether ``text`` can be the name of an OS user."""
    return _NAME.fullmatch(text) is not None


def name() -> str:
    """Return the user's name, or ``uid 12345`` where it has none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.geteuid()}"


def home() -> Path:
    """Return the user's home folder: from ``HOME``, from the password file, or ``/`` as in containers."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def password_entry() -> tuple[str, str]:
    """Return name and home folder of the password file, as cron does, whatever the environment says."""
    # Windows, where programs enqueue, has no such module.
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:
        return str(os.geteuid()), str(home())
    return user.pw_name, user.pw_dir
