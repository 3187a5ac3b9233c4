"""The PostgreSQL that Wakeboard starts itself when no database URL is given.

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
from wakeboard.database.embedded.exchange import exchange, put_back, sessions
from wakeboard.database.embedded.server import Server, binary, has_cluster, is_running, start, stop, url

__all__ = [
    "EmbeddedError", "Server", "binary", "default_data_dir", "exchange", "has_cluster", "is_running",
    "put_back", "sessions", "start", "stop", "url",
]  # fmt: skip
