"""Reads the server, its replicas, and the sizes of tables and indexes. Counts no table.

A role that may not see something (other roles' sessions, the data folder) gets NULL.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping

from wakeboard.maintenance.indexes import state

SERVER = f"""
SELECT current_setting('server_version') AS version, pg_postmaster_start_time() AS started_at,
    current_database() AS database, pg_database_size(current_database()) AS bytes,
    (SELECT sum(numbackends)::int FROM pg_stat_database) AS connections,
    current_setting('max_connections')::int AS max_connections,
    (SELECT setting FROM pg_settings WHERE name = 'data_directory') AS data_folder,
    current_setting('synchronous_commit') AS synchronous_commit, current_setting('fsync') AS fsync,
    pg_is_in_recovery() AS is_replica,
    CASE WHEN pg_is_in_recovery()
        THEN extract(epoch FROM now() - pg_last_xact_replay_timestamp())::float8 END AS behind_seconds,
    (SELECT version_num FROM wakeboard.alembic_version) AS revision,
    (SELECT numbers ->> 'missing_privilege' FROM wakeboard.loops
        WHERE process_id = '{state.PROCESS_ID}' AND name = '{state.NAME}') AS unrebuilt
"""
# A role without pg_monitor sees the standbys without their lag.
REPLICAS = """
SELECT coalesce(application_name, '') AS name, client_addr::text AS address, state, sync_state,
    extract(epoch FROM replay_lag)::float8 AS lag_seconds,
    CASE WHEN NOT pg_is_in_recovery()
        THEN pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::float8 END AS lag_bytes
FROM pg_stat_replication ORDER BY 1
"""
# Sent to the replica itself.
FOLLOWER = """
SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS is_replica,
    CASE WHEN pg_is_in_recovery() THEN pg_last_xact_replay_timestamp() END AS replayed_at,
    CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() END AS is_paused,
    CASE WHEN pg_is_in_recovery() THEN
        pg_wal_lsn_diff(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::float8 END AS waiting_bytes,
    EXISTS (SELECT FROM pg_stat_wal_receiver) AS is_connected,
    (SELECT sum(confl_snapshot + confl_lock + confl_bufferpin + confl_deadlock)::int
        FROM pg_stat_database_conflicts WHERE datname = current_database()) AS cancelled_statements
"""
TABLES = """
SELECT c.relname AS name, pg_table_size(c.oid) AS table_bytes, pg_indexes_size(c.oid) AS index_bytes,
    coalesce(s.n_live_tup, 0) AS rows_about, coalesce(s.n_dead_tup, 0) AS dead_rows,
    s.last_autovacuum AS autovacuumed_at, s.last_vacuum AS vacuumed_at, s.last_autoanalyze AS autoanalyzed_at,
    coalesce(s.autovacuum_count, 0) AS autovacuums, age(c.relfrozenxid) AS transactions_old,
    coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold')::float8)
        + coalesce(o.scale, current_setting('autovacuum_vacuum_scale_factor')::float8)
        * greatest(c.reltuples, 0) AS vacuum_at,
    coalesce(o.enabled, true) AND current_setting('autovacuum')::bool AS is_vacuumed
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
LEFT JOIN LATERAL (
    SELECT max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold')::float8 AS threshold,
        max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor')::float8 AS scale,
        max(option_value) FILTER (WHERE option_name = 'autovacuum_enabled')::bool AS enabled
    FROM pg_options_to_table(c.reloptions)
) AS o ON true
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


def _one(connection: Connection, statement: str) -> RowMapping | None:
    return connection.exec_driver_sql(statement).mappings().first()


def read_server(connection: Connection) -> RowMapping:
    """Return the server's version, size, connections and role, and the schema's revision.

    ``unrebuilt`` says which bloated index the workers' role may not rebuild, None when it may.
    """
    row = _one(connection, SERVER)
    assert row is not None
    return row


def list_replicas(connection: Connection) -> Sequence[RowMapping]:
    """Return the standbys that receive from this server, with their lag in seconds and bytes."""
    return connection.exec_driver_sql(REPLICAS).mappings().all()


def read_replica(connection: Connection) -> RowMapping:
    """Return what the replica at ``connection`` has replayed, and whether it is connected to its primary."""
    row = _one(connection, FOLLOWER)
    assert row is not None
    return row


def list_tables(connection: Connection) -> Sequence[RowMapping]:
    """Return the tables, largest first: bytes, estimated rows, times of vacuums."""
    return connection.exec_driver_sql(TABLES).mappings().all()


def list_indexes(connection: Connection) -> Sequence[RowMapping]:
    """Return the indexes, largest first: bytes, scans, time of the last scan, whether valid."""
    return connection.exec_driver_sql(INDEXES).mappings().all()


def read_installation(connection: Connection) -> RowMapping | None:
    """Return when this installation was made, last backed up and last called its dead man's switch."""
    return _one(connection, INSTALLATION)
