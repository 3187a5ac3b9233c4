"""Counts of attempts: deltas, rolled up by the minute, summed by the hour."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
    text,
)

from wakeboard.database.tables.columns import metadata, timestamp


def _statistics(name: str, *indexes: Index) -> Table:
    """Counts of attempts per minute, type, outcome and duration; deltas and roll-ups share the columns.

    ``duration_bucket`` and ``wait_bucket`` are quarter powers of two of milliseconds (see
    ``wakeboard.reporting.statistics``), so percentiles of any window are a sum over few rows.
    """
    return Table(
        name,
        metadata,
        timestamp("minute", required=True),
        Column("job_type", Text, nullable=False),
        Column("outcome", Text, nullable=False),
        Column("duration_bucket", SmallInteger, nullable=False),
        Column("wait_bucket", SmallInteger, nullable=False),
        Column("runs", BigInteger, nullable=False),
        Column("duration_ms", Double, nullable=False),
        Column("duration_max_ms", Double, nullable=False),
        Column("wait_ms", Double, nullable=False),
        Column("wait_max_ms", Double, nullable=False),
        *indexes,
    )


statistics_deltas = _statistics("statistics_deltas", Index("statistics_deltas_by_minute", "minute"))

statistics_rollups = _statistics("statistics_rollups", Index("statistics_rollups_by_minute", "minute"))


def _summed(name: str, hour: Column[object], *others: Column[object]) -> Table:
    """What the minutes of an hour say together (see ``wakeboard.reporting.hourly_rollups``).

    ``failed`` counts failed, timed out and lost attempts; ``duration_ms`` and ``duration_max_ms`` are of
    these and of the successful ones. The ``duration_`` arrays are of the successful ones, the ``wait_``
    arrays of every attempt: buckets that hold any, ascending, with how many each holds.
    """
    return Table(
        name,
        metadata,
        hour,
        *others,
        *(
            Column(each, BigInteger, nullable=False, server_default=text("0"))
            for each in ("succeeded", "failed")
        ),
        *(
            Column(each, Double, nullable=False, server_default=text("0"))
            for each in ("duration_ms", "duration_max_ms", "succeeded_max_ms", "wait_max_ms")
        ),
        *(
            Column(each, ARRAY(kind), nullable=False, server_default=text("'{}'"))
            for each, kind in (
                ("duration_buckets", SmallInteger),
                ("duration_runs", BigInteger),
                ("duration_bucket_ms", Double),
                ("wait_buckets", SmallInteger),
                ("wait_runs", BigInteger),
            )
        ),
    )


# A row for each hour of which anything was merged, or that was found empty; ``summed_at`` is NULL until its
# sums are those of its minutes, and again as soon as a late delta changes these.
statistics_hours = _summed(
    "statistics_hours", Column("hour", DateTime(timezone=True), primary_key=True), timestamp("summed_at")
)

statistics_hours_of_types = _summed(
    "statistics_hours_of_types",
    Column(
        "hour",
        DateTime(timezone=True),
        ForeignKey("wakeboard.statistics_hours.hour", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("job_type", Text, primary_key=True),
    # All attempts, the cancelled and released ones too, and how long they held slots.
    Column("attempts", BigInteger, nullable=False, server_default=text("0")),
    Column("lost", BigInteger, nullable=False, server_default=text("0")),
    Column("busy_ms", Double, nullable=False, server_default=text("0")),
    # Parallel arrays, an entry for each slice in which attempts ended: the minute of the hour in which the
    # slice begins; the minutes in which the first of them began (below 0 before the hour) and after which the
    # last one had ended; how many they were, and how many failed.
    Column("slice_minutes", ARRAY(SmallInteger), nullable=False, server_default=text("'{}'")),
    Column("slice_starts", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    Column("slice_ends", ARRAY(SmallInteger), nullable=False, server_default=text("'{}'")),
    Column("slice_attempts", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    Column("slice_failed", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
)
