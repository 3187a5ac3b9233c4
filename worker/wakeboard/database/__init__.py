"""Connections, tables, migrations, the embedded server, the audit log, and what PostgreSQL refuses."""
