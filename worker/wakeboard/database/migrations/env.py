"""Alembic's entry: makes large indexes, then runs migrations in one transaction."""

from alembic import context
from sqlalchemy import text

from wakeboard.database.db import engine
from wakeboard.database.migrations.large_indexes import create_large_indexes
from wakeboard.database.migrations.locks import lock_every_table
from wakeboard.database.tables import SCHEMA, metadata


def include_name(name: str | None, kind: str, _parents: object) -> bool:
    """Compare our schema only: handlers' own tables live beside it."""
    return kind != "schema" or name == SCHEMA


def run() -> None:
    """Run the requested migrations on the database of ``database.migrations.migrate``."""
    url = context.config.attributes["url"]
    create_large_indexes(url, context.script, context.get_revision_argument())
    target = engine(url, name="wakeboard migrate", statement_timeout_seconds=0)
    try:
        with target.connect() as connection:
            lock_every_table(connection)
            connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
            context.configure(
                connection=connection,
                target_metadata=metadata,
                version_table_schema=SCHEMA,
                include_schemas=True,
                include_name=include_name,
            )
            context.run_migrations()
            connection.commit()
    finally:
        target.dispose()


run()
