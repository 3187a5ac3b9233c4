"""Which runs an operation moves, and why it skips others: one rule for the preview, the start and each move.

SQL text over a run ``r`` and its type ``t``, and the words for it. Opens no connection.
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
# What is skipped by default and may be included.
INCLUDABLE = ("paused", "unconfirmed")

# For more runs a person filters further, or starts another operation afterwards.
MOST_RUNS = 100_000
# For more runs than this the number has to be typed.
TYPED_ABOVE = 100
FASTEST = 60_000
# The share of failures counts from so many ended attempts on.
JUDGED_FROM = 5
# An older preview cannot be confirmed.
OLDEST_PREVIEW_SECONDS = 3600

# Why a run is skipped, by verdict.
SKIP_REASONS = {
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
    """Return the SQL that is 'moves', or why ``verb`` skips the run: a key of SKIP_REASONS.

    Its parameters are ``as_of``, when the runs were counted, and ``also``, what is included (of INCLUDABLE).
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
RUNS_BY_ID = """unnest(%(ids)s::bigint[]) AS taken (run_id)
CROSS JOIN LATERAL (SELECT * FROM wakeboard.job_runs WHERE id = taken.run_id LIMIT 1) AS r
LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type"""


def describe_skips(skips: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (words, how many) of what was skipped, the most frequent first."""
    ordered = sorted(skips.items(), key=lambda each: (-each[1], each[0]))
    return [(SKIP_REASONS.get(why, why), count) for why, count in ordered if count]
