"""OS users: what is a name of one, and whom this process is, in a container often nobody with a name."""

from __future__ import annotations

import os
import re
from pathlib import Path

# A number is no name: which user it means differs from machine to machine.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]*\$?")


def is_user_name(text: str) -> bool:
    """Return whether ``text`` can be the name of an OS user."""
    return _NAME.fullmatch(text) is not None


def name() -> str:
    """Return the user's name, or what stands for it: ``uid 12345``."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.geteuid()}"


def home() -> Path:
    """Return the user's home folder: that of ``HOME``, of the password file, or ``/`` as in containers."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def of_cron() -> tuple[str, str]:
    """Return name and home folder as the password file has them, whatever the environment says."""
    # Windows, where programs enqueue, has none.
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:
        return str(os.geteuid()), str(home())
    return user.pw_name, user.pw_dir
