"""Enabled schedules that cannot fire: which, and why. One question for all who tell of them. No imports.

A worker that comes to one notes why with it (``schedules.scheduler``): its zone is not known, its text cannot
be read, or has no time; or the database refuses its run, which is tried again each minute. A run that is made
and an edit take the note away.
"""

IS_UNFIREABLE = "enabled AND schedule IS NOT NULL AND error IS NOT NULL"
# So many are read, and one more that says that there are others.
MOST = 1000
# ``is_held``: it has a time, and would fire if the database let it.
UNFIREABLE = f"""
SELECT name, error, next_fire_at IS NOT NULL AS is_held
FROM wakeboard.job_definitions WHERE {IS_UNFIREABLE} ORDER BY name LIMIT {MOST + 1}
"""
