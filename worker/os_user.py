"""The OS user that this process is: in a container often one whom no password file knows."""

from __future__ import annotations

import os
from pathlib import Path


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
