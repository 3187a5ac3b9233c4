"""Enabled schedules that can never fire: which, and why. One question for all who tell of them. No imports.

A worker that comes to one notes why with it (``worker.schedule``): its zone is not known, its text cannot be
read, or has no time. An edit takes the note away, and the next look decides anew.
"""

IS_UNFIREABLE = "enabled AND schedule IS NOT NULL AND next_fire_at IS NULL AND error IS NOT NULL"
# So many are read, and one more that says that there are others.
MOST = 1000
UNFIREABLE = f"""
SELECT name, error FROM wakeboard.job_definitions WHERE {IS_UNFIREABLE} ORDER BY name LIMIT {MOST + 1}
"""
