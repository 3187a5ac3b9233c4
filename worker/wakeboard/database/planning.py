"""The session settings that the engine's statements are written for."""

from __future__ import annotations

# Plans are made once, perhaps on the empty table of a new installation, and kept until the table is analyzed:
# a finish planned then cost 750 µs a run when 25,000 rows had come, 45 with these.
PLANNING = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # On an analyzed table with little to do a claim took the status index and a sort, per priority: 94 ms
    # instead of 13 with 30,000 dead rows under an old snapshot.
    "enable_sort": "off",
}
