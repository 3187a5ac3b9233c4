"""Paths of the cluster, its socket and its locks, and the URL of its server. Creates nothing."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from wakeboard.database.embedded.cluster_owner import ClusterOwner

PORT = "5432"
SOCKET_BYTES = 100
DATABASE = "wakeboard"
ROLE = "wakeboard"
SUPERUSER = "postgres"


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """The folders and files of one embedded server; ``owner`` is the OS user it runs as."""

    data_dir: Path
    owner: ClusterOwner

    @property
    def home(self) -> Path:
        return home(self.data_dir)

    @property
    def cluster(self) -> Path:
        return self.home / "data"

    @property
    def postmaster_file(self) -> Path:
        return self.cluster / "postmaster.pid"

    @property
    def log_folder(self) -> Path:
        return self.cluster / "log"

    @property
    def startup_log(self) -> Path:
        return self.home / "startup.log"

    @property
    def hba_file(self) -> Path:
        return self.data_dir / "pg_hba.conf"

    @property
    def ident_file(self) -> Path:
        return self.data_dir / "pg_ident.conf"

    @property
    def socket_folder(self) -> Path:
        """Below the data, or, when that is too long for a socket's address, below /tmp.

        A comma separates hosts in a libpq URL, so such a path goes to /tmp too.

        Not below XDG_RUNTIME_DIR: that folder goes at logout, and a crontab line does not know it.
        """
        near = self.home / "socket"
        if len(os.fsencode(near / f".s.PGSQL.{PORT}")) < SOCKET_BYTES and "," not in str(near):
            return near
        digest = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:16]
        return Path(f"/tmp/wakeboard-{self.owner.uid}-{digest}")

    def url(self, *, user: str = ROLE, database: str = DATABASE) -> str:
        """Return a libpq URL that reaches this server alone: the OS user behind the socket is checked."""
        parameters = {"host": str(self.socket_folder), "port": PORT, "requirepeer": self.owner.name}
        query = urlencode(parameters, safe="/", quote_via=quote)
        return f"postgresql://{quote(user)}@/{quote(database)}?{query}"


def home(data_dir: Path) -> Path:
    """Return the folder inside ``data_dir`` that belongs to the server's OS user."""
    return data_dir / "postgres"


def resolve(data_dir: Path) -> Path:
    """Return ``data_dir`` as one absolute path, so that every caller finds the same server."""
    with suppress(RuntimeError):  # a user without a home
        data_dir = data_dir.expanduser()
    return Path(os.path.realpath(data_dir))
