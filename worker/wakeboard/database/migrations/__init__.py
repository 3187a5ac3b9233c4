"""Alembic migrations of schema ``wakeboard``; run by ``wakeboard.database.db.migrate`` under an advisory lock."""
