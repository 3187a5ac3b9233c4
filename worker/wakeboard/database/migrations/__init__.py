"""Alembic migrations of schema ``wakeboard``; run by ``database.db.migrate`` under an advisory lock."""
