"""What an operation does to a run, or why it leaves it: one rule for the preview, the start and each move.

SQL text over a run ``r`` and its type ``t``, and the words for it. Asks no database.
"""

from __future__ import annotations

from collections.abc import Mapping

from wakeboard.core.states import CLAIMABLE, MOVES, Status, sql_list
from wakeboard.queue.effect_store import is_unconfirmed

# The verbs for many runs and the moves they make.
VERB_MOVES = {"retry": "retry_now", "cancel": "cancel", "again": "run_again"}
# Runs of these verbs are watched until their next attempt has ended.
WATCHED = ("retry", "again")
STATES = ("running", "paused", "finished", "stopped", "aborted")
OPEN = ("running", "paused")
# What may be taken along although it is left by default.
ALSO = ("paused", "unconfirmed")

# More than anybody confirms by typing a number: filter further, or start another one afterwards.
MOST_RUNS = 100_000
# From so many on the number has to be typed.
TYPED_ABOVE = 100
FASTEST = 60_000
# Fewer ended attempts say nothing about a share of failures.
JUDGED_FROM = 5
# So old a preview shows another world.
OLDEST_PREVIEW_SECONDS = 3600

# Why a run is left as it is, by verdict.
LEFT = {
    "changed": "changed since they were counted",
    "state": "in a state that does not allow it",
    "due": "due already",
    "asked": "asked to stop already",
    "paused": "of a paused type",
    "unconfirmed": "with an effect that no one has confirmed",
    "missing": "removed meanwhile",
    "refused": "refused by the database",
    "beyond": "not looked at when it ended",
}


def sources(verb: str) -> tuple[Status, ...]:
    """Return the states from which ``verb`` moves a run."""
    return MOVES[VERB_MOVES[verb]].sources


def verdict(verb: str) -> str:
    """Return the SQL that says 'moves', or why ``verb`` leaves the run: a key of LEFT.

    Its parameters are ``as_of``, when the runs were counted, and ``also``, what is taken along (of ALSO).
    """
    cases = [
        ("r.updated_at > %(as_of)s", "changed"),
        (f"r.status NOT IN ({sql_list(sources(verb))})", "state"),
    ]
    if verb == "retry":
        cases.append((f"r.status IN ({sql_list(CLAIMABLE)}) AND r.run_at <= now()", "due"))
    if verb == "cancel":
        cases.append(("r.status = 'running' AND r.cancel_requested_at IS NOT NULL", "asked"))
    if verb in WATCHED:
        effect = f"SELECT FROM wakeboard.effects AS e WHERE e.run_id = r.id AND {is_unconfirmed('e')}"
        cases += [
            ("t.paused_at IS NOT NULL AND 'paused' <> ALL (%(also)s::text[])", "paused"),
            (f"'unconfirmed' <> ALL (%(also)s::text[]) AND EXISTS ({effect})", "unconfirmed"),
        ]
    whens = "\n        ".join(f"WHEN {condition} THEN '{word}'" for condition, word in cases)
    return f"""CASE
        {whens}
        ELSE 'moves' END"""


# The runs ``ids`` as ``r``, each probed by its id: as a join, many ids would read the whole table.
TAKEN = """unnest(%(ids)s::bigint[]) AS taken (run_id)
CROSS JOIN LATERAL (SELECT * FROM wakeboard.job_runs WHERE id = taken.run_id LIMIT 1) AS r
LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type"""


def left(skips: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (words, how many) of what was left, the most frequent first."""
    ordered = sorted(skips.items(), key=lambda each: (-each[1], each[0]))
    return [(LEFT.get(why, why), count) for why, count in ordered if count]
