"""Reading a backup into an empty database, in one transaction."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from wakeboard.maintenance.backups.dump import LOOK_SECONDS, PLAIN, BackupError, said_last


def load(pg_restore: Path, url: str, file: Path, *, progress: Callable[[str], None]) -> None:
    """Load ``file`` into the empty database of ``url``, all of it or nothing.

    Everything belongs to the role of ``url`` afterwards; rights of other roles are not restored, because a
    backup holds no roles. Raises BackupError.
    """
    command = [str(pg_restore), "--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error"]
    with subprocess.Popen(
        [*command, f"--dbname={url}", str(file)],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=PLAIN,
    ) as loading:
        try:
            while loading.poll() is None:
                progress("reading the backup")
                time.sleep(LOOK_SECONDS)
        except BaseException:
            loading.kill()
            raise
        assert loading.stderr is not None
        said = loading.stderr.read()
    if loading.returncode != 0:
        raise BackupError(f"{file} could not be restored: {said_last(said)}")
