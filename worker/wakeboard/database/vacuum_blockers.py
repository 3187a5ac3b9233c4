"""What keeps VACUUM from removing dead rows: open and prepared transactions, replication slots, standbys.

Says how long a transaction may be open before people are warned. Reads only, and ends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.core.time.durations import format_duration
from wakeboard.database.read import read_all

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

# Longer than any transaction of ours: a statement ends after 30 s, and so does a session that idles inside a
# transaction (see database.db). What is open for longer is another program's, or a handler's.
LONG_TRANSACTION_SECONDS = 60
# Behind a snapshot of this age claims run at a quarter of their pace (measured after 200,000 runs).
MANY_TRANSACTIONS = 100_000
# A slot that nobody reads keeps the write-ahead log until the disk is full.
LARGE_LOG_BYTES = 1_000_000_000
MOST_SESSIONS = 10
STATEMENT_LENGTH = 300

# A role without pg_monitor sees of other roles' sessions the name and the age in transactions alone.
HIDDEN = "state IS NULL AND query = '<insufficient privilege>'"
BLOCKERS = f"""
(SELECT 'session' AS kind, pid::text AS id, coalesce(application_name, '') AS name, usename::text AS owner,
    state, xact_start AS began_at, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
    greatest(age(backend_xmin), age(backend_xid)) AS transactions,
    CASE WHEN {HIDDEN} THEN NULL ELSE left(query, {STATEMENT_LENGTH}) END AS statement,
    {HIDDEN} AS is_hidden, NULL::float8 AS log_bytes
FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND datname = current_database()
    AND ((xact_start IS NOT NULL AND backend_type = 'client backend')
        OR ({HIDDEN} AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)))
ORDER BY xact_start, 8 DESC NULLS LAST LIMIT {MOST_SESSIONS})
UNION ALL
SELECT 'prepared', gid, gid, owner::text, 'prepared', prepared,
    extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction), NULL, false, NULL
FROM pg_prepared_xacts WHERE database = current_database()
UNION ALL
SELECT 'slot', slot_name::text, slot_name::text, NULL,
    CASE WHEN active THEN 'in use' ELSE 'nobody reads it' END, NULL, NULL,
    greatest(age(xmin), age(catalog_xmin)), NULL, false,
    CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8 END
FROM pg_replication_slots
UNION ALL
SELECT 'standby', pid::text, coalesce(application_name, ''), usename::text, state, NULL, NULL,
    age(backend_xmin), NULL, false, NULL
FROM pg_stat_replication WHERE backend_xmin IS NOT NULL
"""
# Whether this role sees other roles' sessions, and how many are hidden from it.
VISIBILITY = f"""
SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all, current_user::text AS role,
    (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {HIDDEN}) AS hidden
"""


@dataclass(frozen=True, slots=True)
class VacuumBlocker:
    """Something that may hold dead rows back; ``transactions`` is its age in them, None when it holds none.

    ``kind`` is 'session', 'prepared', 'slot' or 'standby', ``id`` what a person ends it by. ``began_at`` and
    ``statement`` are None where this role may not see them. ``log_bytes`` is what a slot keeps of the log.
    """

    kind: str
    id: str
    name: str
    owner: str | None
    state: str | None
    began_at: datetime | None
    seconds: float | None
    transactions: int | None
    statement: str | None
    is_hidden: bool
    log_bytes: float | None

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        if self.kind == "session":
            return f"A transaction of “{self.name or 'a program without a name'}” (pid {self.id})"
        words = {"prepared": "The prepared transaction", "slot": "The replication slot"}
        return f"{words.get(self.kind, 'The standby')} “{self.name}”"

    @property
    def is_long(self) -> bool:
        """Whether it is older than anything of ours, or keeps more than it should."""
        if self.kind in ("session", "prepared") and self.seconds is not None:
            return self.seconds > LONG_TRANSACTION_SECONDS
        return (self.transactions or 0) > MANY_TRANSACTIONS or (self.log_bytes or 0) > LARGE_LOG_BYTES

    @property
    def says(self) -> str:
        """What it holds back, in one sentence."""
        if (self.log_bytes or 0) > LARGE_LOG_BYTES:
            amount = f"{(self.log_bytes or 0) / 1e9:.1f} GB of the write-ahead log"
            return f"{self.title} keeps {amount} ({self.state})."
        if self.seconds is None:
            return f"{self.title} holds back what {self.transactions or 0} transactions left behind."
        open_for = f"{self.title} has been open for {format_duration(int(self.seconds))}"
        if self.transactions is None:
            return f"{open_for} and idles: what it has locked stays locked."
        return f"{open_for}: dead rows pile up and claims slow down."

    @property
    def mend(self) -> str:
        """How to end it."""
        if self.kind == "session":
            condition = "A dump ends by itself. Else, if" if self.name == "pg_dump" else "If"
            return f"{condition} nobody needs it: SELECT pg_terminate_backend({self.id})"
        quoted = self.id.replace("'", "''")
        if self.kind == "prepared":
            return f"Ask whoever prepared it, then: ROLLBACK PREPARED '{quoted}' (or COMMIT PREPARED)"
        if self.kind == "slot":
            return f"If no standby will come back for it: SELECT pg_drop_replication_slot('{quoted}')"
        return "A long query runs there, with hot_standby_feedback: end that query on the standby."


class SessionVisibility(NamedTuple):
    """What the role ``role`` sees of other roles' sessions: all of them, or all but ``hidden``."""

    sees_all: bool
    role: str
    hidden: int


def find_blockers(connection: Connection) -> list[VacuumBlocker]:
    """Return what may hold dead rows back, as far as this role can see, the oldest transaction first."""
    return read_all(connection, BLOCKERS, VacuumBlocker)


def read_visibility(connection: Connection) -> SessionVisibility:
    """Return what this role sees of other roles' sessions."""
    return read_all(connection, VISIBILITY, SessionVisibility)[0]
