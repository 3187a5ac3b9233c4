"""The one statement that counts failures by group: attempts of a window, and runs that fail now.

Each is read from an index alone, newest first and at most a cap of its own: failed attempts, failed runs,
dead runs. A group is a code, a type and a number; the same three in all parts. A number stands for one code
and one type (``core.errors.error_groups``): where each is known, rows are told apart by it alone, which is
quicker. Attempts stand alone as well, for a night: it tells what became of their runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from sqlalchemy import TextClause, text

from wakeboard.core.states import FAILING, FAILURES, Status, sql_list
from wakeboard.reporting.activity_report.faults import UNKNOWN

FAILED = f"outcome IN ({sql_list(FAILURES)})"
_PLAIN_CODE = f"coalesce(error_code, '{UNKNOWN}')"
FAILS_NOW = f"status IN ({sql_list(FAILING)})"

# A place is one of the steps that begin at :starts, counted from 1; runs stand in none, which is 0. Ordered
# arrays are built group by group: the planner thinks that the others need more memory than there is.
_STATEMENT = """
WITH tried AS (
    SELECT {of_attempt}, finished_at,
        width_bucket(finished_at, CAST(:starts AS timestamptz[])) AS place
    FROM wakeboard.job_attempts
    WHERE {failed} AND finished_at >= :since AND finished_at < :until {of_code} {of_type}
    ORDER BY finished_at DESC LIMIT {cap}
), counted AS (
    SELECT {kind}, place, CAST(count(*) AS integer) AS tried,
        min(finished_at) AS first_at, max(finished_at) AS last_at, 0 AS failed, 0 AS dead
    FROM tried GROUP BY {kind}, place
    UNION ALL
    SELECT {kind}, 0, 0, NULL, NULL, failed, dead FROM ({failing}) AS failing
), found AS (
    SELECT {kind}, sum(tried) AS count, sum(failed) AS failed, sum(dead) AS dead,
        min(first_at) AS first_at, max(last_at) AS last_at,
        array_agg(place ORDER BY place) AS places, array_agg(tried ORDER BY place) AS counts
    FROM counted GROUP BY {kind}
), named AS (
    {named}
), whole AS (
    SELECT sum(count) >= {cap} AS is_cut, {runs} >= {runs_cap} AS are_runs_cut,
        count(*) FILTER (WHERE NOT is_muted) AS heard,
        CAST(array_agg(error_group) FILTER (WHERE error_group IS NOT NULL) AS text) AS numbers,
        bool_or(code IS NULL) AS is_nameless
    FROM named
), ranked AS (
    SELECT *, row_number() OVER (
        PARTITION BY is_muted
        ORDER BY count DESC, dead + failed DESC, code COLLATE "C", job_type COLLATE "C", error_group
    ) AS rank
    FROM named
)
SELECT code, job_type, error_group, count, failed, dead, first_at, last_at, places, counts, is_muted,
    is_cut, are_runs_cut, heard, CASE WHEN rank = 1 THEN numbers END AS numbers, is_nameless
FROM ranked CROSS JOIN whole {first_ones} ORDER BY is_muted, rank
"""

_NEWEST = """
    SELECT {of_attempt}, finished_at FROM wakeboard.job_attempts
    WHERE {failed} AND finished_at >= :since AND finished_at < :until
    ORDER BY finished_at DESC LIMIT {cap}"""
# Of groups with as many attempts the runs that fail say which comes first: all are told that share a rank.
_MOST_TRIED = f"""
SELECT {{names}}, count, first_at, last_at, is_cut
FROM (
    SELECT *, sum(count) OVER () >= {{cap}} AS is_cut, rank() OVER (ORDER BY count DESC) AS rank
    FROM (
        SELECT {{kind}}, count(*) AS count, min(finished_at) AS first_at, max(finished_at) AS last_at
        FROM ({_NEWEST}) AS tried GROUP BY {{kind}}
    ) AS found
) AS ranked {{kept}}
WHERE rank <= :most ORDER BY rank
"""
_STEPS_OF = f"""
SELECT asked, array_agg(step) AS steps, array_agg(tried) AS counts
FROM (
    SELECT asked.place AS asked, width_bucket(tried.finished_at, CAST(:starts AS timestamptz[])) AS step,
        count(*) AS tried
    FROM ({_NEWEST}) AS tried
    JOIN {{asked}}
    GROUP BY asked.place, step
) AS counted
GROUP BY asked
"""

# What tells groups apart, how attempts and runs have it, what names groups that were ranked, and how those
# that are asked for are found.
_BY_NAMES = {
    "kind": "error_group, code, job_type",
    "of_attempt": f"error_group, {_PLAIN_CODE} AS code, job_type",
    "of_run": "error_group, error_code AS code, job_type",
    "names": "code, job_type, error_group",
    "kept": "",
    "asked": """unnest(CAST(:codes AS text[]), CAST(:job_types AS text[]), CAST(:numbers AS bigint[]))
        WITH ORDINALITY AS asked (code, job_type, number, place)
        ON asked.code = tried.code AND asked.job_type = tried.job_type
        AND asked.number IS NOT DISTINCT FROM tried.error_group""",
}
_BY_NUMBER = {
    **dict.fromkeys(("kind", "of_attempt", "of_run"), "error_group"),
    "names": "g.error_code AS code, g.job_type, ranked.error_group",
    "kept": "LEFT JOIN wakeboard.error_groups AS g ON g.id = ranked.error_group",
    "asked": """unnest(CAST(:numbers AS bigint[])) WITH ORDINALITY AS asked (number, place)
        ON asked.number = tried.error_group""",
}
# How groups get their names and are muted.
_NAMED = "SELECT *, {muted} AS is_muted FROM found"
_MUTED = "error_group IN (SELECT id FROM wakeboard.error_groups WHERE muted_until > now()) IS TRUE"
_NAMED_BY_NUMBER = """SELECT found.*, g.error_code AS code, g.job_type, {muted} AS is_muted
    FROM found LEFT JOIN wakeboard.error_groups AS g ON g.id = found.error_group"""
_NUMBER_MUTED = "coalesce(g.muted_until > now(), false)"

# A range, and an order that only an index by state has: others lead past runs that do not fail. One end
# tells the two states apart. Hidden from the planner it stands for a third of what fails: enough to read on
# in order until the cap, where a small number, guessed right or wrong, would have it collect them all first.
_OF_A_STATE = """
    SELECT {of_run}, {failed} AS failed, {dead} AS dead
    FROM (
        SELECT error_code, job_type, error_group FROM wakeboard.job_runs
        WHERE {failing} AND status {end} (SELECT '{status}') {of_type}
        ORDER BY status DESC, id DESC LIMIT {cap}
    ) AS {status} GROUP BY {kind}"""

# The index by code has both states in one order.
_OF_A_CODE = """
    SELECT {of_run},
        CAST(count(*) FILTER (WHERE status = 'failed') AS integer) AS failed,
        CAST(count(*) FILTER (WHERE status = 'dead') AS integer) AS dead
    FROM (
        SELECT error_code, job_type, error_group, status FROM wakeboard.job_runs
        WHERE {failing} AND error_code = :code {of_type} ORDER BY id DESC LIMIT {cap}
    ) AS failing GROUP BY {kind}"""


@cache
def statement(
    *,
    cap: int,
    runs_cap: int,
    code: bool,
    unknown: bool,
    job_type: bool,
    apart: bool,
    all_of_them: bool,
    by_number: bool,
) -> TextClause:
    """Return the statement that counts by group; it wants :since, :until and :starts, the ends of its steps.

    Of attempts it counts ``cap``, of runs of each state, or of one code, ``runs_cap``. ``code`` and
    ``job_type``: only those of :code, :job_type; ``unknown``: the code may be missing. ``apart``: muted
    groups are ranked by themselves, else as all others. It wants :most, the lowest rank of each kind that is
    told, unless ``all_of_them`` are. ``by_number``: groups are told apart by their numbers alone; where
    is_nameless, some have none that is kept, and the answer is of no use.
    """
    only = narrowed(code=code, unknown=unknown, job_type=job_type)
    told = _BY_NUMBER if by_number else _BY_NAMES
    named, muted = (_NAMED_BY_NUMBER, _NUMBER_MUTED) if by_number else (_NAMED, _MUTED)
    return text(
        _STATEMENT.format(
            failed=FAILED,
            failing=(_of_a_code if code else _of_states)(told, only["of_type"], runs_cap),
            runs="sum(failed) + sum(dead)" if code else "greatest(sum(failed), sum(dead))",
            runs_cap=runs_cap,
            named=named.format(muted=muted if apart else "false"),
            first_ones="" if all_of_them else "WHERE rank <= :most",
            cap=cap,
            **only,
            **told,
        )
    )


@cache
def most_tried(*, cap: int, by_number: bool) -> TextClause:
    """Return the statement that counts attempts alone; it wants :since, :until and :most.

    Of the newest ``cap`` attempts, the groups that rank up to :most by their number, ties with the last one
    included. ``by_number``: see ``statement``; where one has no code, the answer is of no use.
    """
    told = _BY_NUMBER if by_number else _BY_NAMES
    return text(_MOST_TRIED.format(failed=FAILED, cap=cap, **told))


@cache
def steps_of(*, cap: int, by_number: bool) -> TextClause:
    """Return the statement that counts the same attempts by the steps that begin at :starts.

    It wants :since and :until, and :codes, :job_types and :numbers, and tells groups by their places among
    those, from 1 on. ``by_number``: the numbers alone, of which none may be missing.
    """
    told = _BY_NUMBER if by_number else _BY_NAMES
    return text(_STEPS_OF.format(failed=FAILED, cap=cap, **told))


def narrowed(*, code: bool, unknown: bool, job_type: bool) -> dict[str, str]:
    """Return the conditions on the code and the type of attempts."""
    return {
        "of_code": f"AND {_PLAIN_CODE if unknown else 'error_code'} = :code" if code else "",
        "of_type": "AND job_type = :job_type" if job_type else "",
    }


def _of_a_code(told: Mapping[str, str], of_type: str, cap: int) -> str:
    return _OF_A_CODE.format(failing=FAILS_NOW, of_type=of_type, cap=cap, **told)


def _of_states(told: Mapping[str, str], of_type: str, cap: int) -> str:
    number = "CAST(count(*) AS integer)"
    parts = ((Status.FAILED, ">=", number, "0"), (Status.DEAD, "<=", "0", number))
    return "\n    UNION ALL".join(
        _OF_A_STATE.format(
            failed=failed,
            dead=dead,
            failing=FAILS_NOW,
            status=status.value,
            end=end,
            of_type=of_type,
            cap=cap,
            **told,
        )
        for status, end, failed, dead in parts
    )
