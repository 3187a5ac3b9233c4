"""Alembic migrations of schema ``wakeboard``; run by ``wakeboard.db.migrate`` under an advisory lock."""
