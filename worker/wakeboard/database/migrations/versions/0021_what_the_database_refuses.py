"""An edit keeps a fire that the database refuses, and an index has the runs that it refuses to let start."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

SCHEMA = "wakeboard"
# As in migration 0002, but for fires that are due although the schedule has an error: the database refuses
# their run. One that cannot be read, or never comes, has no next fire.
FOLLOW_EDITS = """
CREATE OR REPLACE FUNCTION wakeboard.follow_schedule_edit() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    goes_on boolean := NEW.enabled AND NEW.schedule IS NOT NULL;
BEGIN
    IF NOT goes_on THEN
        NEW.unsettled := (
            SELECT jsonb_agg(stretch || '{"fires": false}')
            FROM jsonb_array_elements(OLD.unsettled) AS stretch
        );
    END IF;
    IF OLD.enabled AND OLD.schedule IS NOT NULL AND (OLD.error IS NULL OR OLD.next_fire_at IS NOT NULL)
        AND (OLD.next_fire_at IS NULL OR OLD.next_fire_at <= moment)
    THEN
        NEW.unsettled := coalesce(NEW.unsettled, '[]') || jsonb_build_array(jsonb_build_object(
            'schedule', OLD.schedule, 'timezone', OLD.timezone, 'first', OLD.next_fire_at,
            'after', OLD.settled_at, 'until', moment, 'fires', goes_on
        ));
    END IF;
    NEW.settled_at := moment;
    NEW.updated_at := moment;
    IF NEW.next_fire_at IS NOT DISTINCT FROM OLD.next_fire_at AND (OLD.next_fire_at <= moment
        OR (OLD.schedule, OLD.timezone) IS DISTINCT FROM (NEW.schedule, NEW.timezone))
    THEN
        NEW.next_fire_at := NULL;
    END IF;
    IF NEW.error IS NOT DISTINCT FROM OLD.error THEN
        NEW.error := NULL;
    END IF;
    RETURN NEW;
END $$;
"""
LARGE_INDEXES = {
    "job_runs_set_aside": "job_runs (job_type, updated_at) INCLUDE (run_at)"
    " WHERE error_code = 'claim_refused' AND status IN ('queued', 'failed')",
}


def upgrade() -> None:
    op.execute(FOLLOW_EDITS)
    for name, place in LARGE_INDEXES.items():
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {SCHEMA}.{place}")
