"""Alembic's entry: runs migrations in one transaction on the engine of ``worker.db``."""

from alembic import context
from sqlalchemy import text

from worker.db import engine
from worker.migrations.locks import take_every_table
from worker.tables import SCHEMA, metadata


def include_name(name: str | None, kind: str, _parents: object) -> bool:
    """Compare our schema only: handlers' own tables live beside it."""
    return kind != "schema" or name == SCHEMA


def run() -> None:
    """Run the asked migrations on the database whose URL ``worker.db.migrate`` handed over."""
    url = context.config.attributes["url"]
    target = engine(url, name="wakeboard migrate", statement_timeout_seconds=0)
    try:
        with target.connect() as connection:
            take_every_table(connection)
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
