"""The PostgreSQL server that Wakeboard starts itself when no database URL is given.

Owns the cluster's folder, its server process and who may connect; knows nothing of the tables inside it.
Imports neither SQLAlchemy nor the start-up code of the wheel that brings the PostgreSQL binaries.
"""

import sys

if sys.platform == "win32":  # no fcntl and no pwd there, so nothing below could be imported
    raise ImportError(
        "The embedded database runs on Linux and macOS, not on Windows: set WAKEBOARD_DATABASE_URL."
    )

from wakeboard.config.settings import default_data_dir
from wakeboard.database.embedded.errors import EmbeddedError
from wakeboard.database.embedded.server import Server, binary, has_cluster, is_running, start, stop, url
from wakeboard.database.embedded.swap import list_sessions, swap_back, swap_in

__all__ = [
    "EmbeddedError", "Server", "binary", "default_data_dir", "has_cluster", "is_running", "list_sessions",
    "start", "stop", "swap_back", "swap_in", "url",
]  # fmt: skip
