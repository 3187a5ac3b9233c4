"""Alembic migrations of schema ``wakeboard``; run by ``worker.db.migrate`` under an advisory lock."""
