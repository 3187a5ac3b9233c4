"""Missed fires outlive their schedule, and a rule watches for schedules that can never fire."""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

SCHEMA = "wakeboard"
# Whoever removes the schedule, also by plain SQL; its row is locked by then, and no scheduler adds to them.
KEEP = """
CREATE FUNCTION wakeboard.keep_missed_fires() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE wakeboard.missed_fires SET definition_id = NULL, schedule_name = OLD.name
    WHERE definition_id = OLD.id;
    RETURN OLD;
END $$;
CREATE TRIGGER job_definitions_removed BEFORE DELETE ON wakeboard.job_definitions
FOR EACH ROW EXECUTE FUNCTION wakeboard.keep_missed_fires();
"""
FOREIGN_KEY = "missed_fires_definition_id_fkey"


def upgrade() -> None:
    op.execute(
        f"ALTER TABLE {SCHEMA}.missed_fires ADD COLUMN schedule_name text,"
        " ALTER COLUMN definition_id DROP NOT NULL,"
        f" DROP CONSTRAINT {FOREIGN_KEY},"
        f" ADD CONSTRAINT {FOREIGN_KEY} FOREIGN KEY (definition_id) REFERENCES {SCHEMA}.job_definitions (id),"
        " ADD CONSTRAINT missed_fires_have_a_schedule"
        " CHECK ((definition_id IS NULL) = (schedule_name IS NOT NULL))"
    )
    op.execute(
        f"CREATE INDEX missed_fires_of_removed ON {SCHEMA}.missed_fires (scheduled_for)"
        " WHERE definition_id IS NULL"
    )
    op.execute(KEEP)
    op.execute(
        f"INSERT INTO {SCHEMA}.alert_rules (name, kind) VALUES ('cannot_fire', 'cannot_fire')"
        " ON CONFLICT (name) DO NOTHING"
    )
