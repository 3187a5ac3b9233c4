"""What the system page asks: the server, sizes from its catalogues, traces of trouble. Counts no table.

Reads what every role may read; a role that may see less (other roles' sessions, the data folder) gets NULL.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping

MOST_REFUSED = 10_000

SERVER = """
SELECT current_setting('server_version') AS version, pg_postmaster_start_time() AS started_at,
    current_database() AS database, pg_database_size(current_database()) AS bytes,
    (SELECT sum(numbackends)::int FROM pg_stat_database) AS connections,
    current_setting('max_connections')::int AS max_connections,
    (SELECT setting FROM pg_settings WHERE name = 'data_directory') AS data_folder,
    current_setting('synchronous_commit') AS synchronous_commit, current_setting('fsync') AS fsync,
    pg_is_in_recovery() AS is_replica,
    CASE WHEN pg_is_in_recovery()
        THEN extract(epoch FROM now() - pg_last_xact_replay_timestamp())::float8 END AS behind_seconds,
    (SELECT version_num FROM wakeboard.alembic_version) AS revision
"""
OLDEST_TRANSACTION = """
SELECT pid, coalesce(application_name, '') AS name, state, xact_start AS began_at,
    extract(epoch FROM now() - xact_start)::float8 AS seconds
FROM pg_stat_activity
WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()
    AND backend_type = 'client backend'
ORDER BY xact_start LIMIT 1
"""
REPLICAS = """
SELECT coalesce(application_name, '') AS name, state, sync_state,
    extract(epoch FROM replay_lag)::float8 AS lag_seconds,
    CASE WHEN NOT pg_is_in_recovery()
        THEN pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::float8 END AS lag_bytes
FROM pg_stat_replication ORDER BY 1
"""
TABLES = """
SELECT c.relname AS name, pg_table_size(c.oid) AS table_bytes, pg_indexes_size(c.oid) AS index_bytes,
    coalesce(s.n_live_tup, 0) AS rows_about, coalesce(s.n_dead_tup, 0) AS dead_rows,
    s.last_autovacuum AS autovacuumed_at, s.last_vacuum AS vacuumed_at, s.last_autoanalyze AS autoanalyzed_at
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
WHERE n.nspname = 'wakeboard' AND c.relkind IN ('r', 'p')
ORDER BY pg_table_size(c.oid) + pg_indexes_size(c.oid) DESC, c.relname
"""
INDEXES = """
SELECT c.relname AS name, t.relname AS on_table, pg_relation_size(c.oid) AS bytes,
    coalesce(s.idx_scan, 0) AS scans, s.last_idx_scan AS used_at, i.indisvalid AND i.indisready AS valid
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
JOIN pg_namespace AS n ON n.oid = t.relnamespace
LEFT JOIN pg_stat_all_indexes AS s ON s.indexrelid = c.oid
WHERE n.nspname = 'wakeboard'
ORDER BY 3 DESC, 1
"""
INSTALLATION = "SELECT created_at, backed_up_at, pinged_at, ping_error FROM wakeboard.installation LIMIT 1"
REFUSED = f"""
SELECT count(*) FROM (
    SELECT FROM wakeboard.job_attempts WHERE refused_at > now() - interval '24 hours' LIMIT {MOST_REFUSED + 1}
) AS refused
"""


def _one(connection: Connection, statement: str) -> RowMapping | None:
    return connection.exec_driver_sql(statement).mappings().first()


def server(connection: Connection) -> RowMapping:
    """Return the server's version, size, connections and role, and the schema's revision."""
    row = _one(connection, SERVER)
    assert row is not None
    return row


def oldest_transaction(connection: Connection) -> RowMapping | None:
    """Return the session whose transaction is open for longest, of those that this role may see."""
    return _one(connection, OLDEST_TRANSACTION)


def replicas(connection: Connection) -> Sequence[RowMapping]:
    """Return the standbys that receive from this server, with their lag in seconds and bytes."""
    return connection.exec_driver_sql(REPLICAS).mappings().all()


def tables(connection: Connection) -> Sequence[RowMapping]:
    """Return the tables, largest first: bytes, rows as the statistics know them, when they were vacuumed."""
    return connection.exec_driver_sql(TABLES).mappings().all()


def indexes(connection: Connection) -> Sequence[RowMapping]:
    """Return the indexes, largest first: bytes, how often and when last used, whether valid."""
    return connection.exec_driver_sql(INDEXES).mappings().all()


def installation(connection: Connection) -> RowMapping | None:
    """Return when this installation was made, last backed up and last called its dead man's switch."""
    return _one(connection, INSTALLATION)


def refused_answers(connection: Connection) -> int:
    """Return how many answers of stale workers were refused in 24 h, at most MOST_REFUSED + 1."""
    return int(connection.exec_driver_sql(REFUSED).scalar_one())
