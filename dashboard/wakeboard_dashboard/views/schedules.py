"""Views of schedules: when each fires, what came of the last fires, and the verbs run, pause and resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import NamedTuple

from flask import Blueprint, abort, g
from markupsafe import Markup
from sqlalchemy import RowMapping

from wakeboard.core.job_options import schedule_names
from wakeboard.core.text.redaction import redact
from wakeboard.database.tables import job_definitions
from wakeboard.queue import definitions
from wakeboard_dashboard.charts.sparks import marks
from wakeboard_dashboard.pages.live import Context, Json, add_page, rows_twin
from wakeboard_dashboard.pages.verbs import add_verb
from wakeboard_dashboard.queries import audit, schedules
from wakeboard_dashboard.queries.keyset import Rows
from wakeboard_dashboard.text import schedule as words
from wakeboard_dashboard.text.changes import describe_all_changes, describe_changes, redact_row
from wakeboard_dashboard.text.oddities import MEANINGS, LatestRun, count_oddities, find_oddities
from wakeboard_dashboard.text.questions import format_question
from wakeboard_dashboard.views.audit import action_label
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading
from wakeboard_dashboard.web.errors import NotFoundWithLink
from wakeboard_dashboard.web.not_found import missing

blueprint = Blueprint("schedules", __name__)

PATH = "/schedules"
ONE = f"{PATH}/<name>"
FIELDS = {
    "state": params.one_of(schedules.STATES, many=True),
    "type": params.TEXT,
    "q": params.TEXT,
}
COLUMNS = [
    "name", "job_type", "schedule", "words", "timezone", "enabled", "error", "next_fire_at", "last_fire_at",
    "last_run_id", "last_run_status", "missed_24h", "late", "overlapping", "twice", "paused_by", "paused_at",
    "paused_reason", "misfire", "grace_seconds", "overlap", "standstill",
]  # fmt: skip


class Strip(NamedTuple):
    """The latest runs of a schedule as marks, the newest of them, and how many are odd, by word."""

    marks: Markup
    newest: LatestRun
    odd: Mapping[str, int]


def find_schedules() -> Context:
    """Return the definitions of the page with their latest runs and missed fires."""
    filters = params.from_request(FIELDS)
    rows = schedules.list_schedules(reading(), filters)
    zones = {row["id"]: row["timezone"] for row in rows.items}
    latest = schedules.read_latest_runs(reading(), list(zones))
    return {
        "filters": filters,
        "rows": rows,
        "strips": {each: _strip(runs, zones[each], g.zone) for each, runs in latest.items()},
        "missed": schedules.count_missed(reading()),
        "pauses": pauses(rows.items),
        "meanings": MEANINGS,
        "states": schedules.STATES,
        "types": schedules.list_type_names(reading()),
        "words": words,
    }


def _strip(runs: Sequence[LatestRun], timezone: str, zone: tzinfo) -> Strip:
    """Return what ``runs`` of a schedule in ``timezone`` are to a reader in ``zone``."""
    odd = find_oddities(runs, timezone)
    return Strip(marks(runs, odd, zone), runs[-1], count_oddities(odd))


def pauses(definitions: Sequence[RowMapping]) -> dict[str, RowMapping]:
    """Return by name who paused those that are paused, when and why, as far as the audit log knows."""
    names = [row["name"] for row in definitions if not row["enabled"]]
    actions = audit.find_last_actions(reading(), "schedule", names, ["schedule.pause"])
    return {name: row for (name, _), row in actions.items()}


def schedules_twin(context: Context) -> Json:
    """Return the list's JSON body."""

    def item(row: RowMapping) -> Json:
        strip = context["strips"].get(row["id"])
        pause = context["pauses"].get(row["name"])
        odd = strip.odd if strip else {}
        return {
            **{name: row[name] for name in COLUMNS if name in row},
            "error": redact(row["error"]),
            **{word: odd.get(word, 0) for word in ("late", "overlapping", "twice")},
            "paused_by": pause["actor"] if pause else None,
            "paused_at": pause["at"] if pause else None,
            "paused_reason": redact(pause["reason"]) if pause else None,
            "words": words.in_words(row["schedule"]),
            "last_run_id": strip.newest.id if strip else None,
            "last_run_status": strip.newest.status if strip else None,
            "missed_24h": context["missed"].get(row["id"], 0),
        }

    rows: Rows = context["rows"]
    return rows.twin(item)


def _require_schedule(name: str) -> RowMapping:
    """Return the definition; the parts of its page, each with a query of its own, share one look at it."""
    if "definition" not in g:
        g.definition = schedules.find_schedule(reading(), name)
    definition: RowMapping | None = g.definition
    if definition is None:
        if schedules.was_removed(reading(), name):
            runs = f"/runs?schedule={name}"
            raise NotFoundWithLink(
                f"Schedule “{name}” was removed. Its runs are kept: {runs}", runs, "Its runs"
            )
        abort(404, missing("schedule", name))
    return definition


def find_schedule(name: str) -> Context:
    """Return one definition."""
    definition = _require_schedule(name)
    return {
        "definition": definition,
        "words": words,
        "pause": pauses([definition]).get(name),
        "code_says": _code_schedule(definition),
    }


def _code_schedule(definition: RowMapping) -> str | None:
    """Return what the code of a schedule's type says, where the schedule has its name and says otherwise.

    With the zone where that differs; code that names none leaves it to whoever edits the schedule.
    """
    schedule: str | None = definition["code_schedule"]
    zone = definition["code_timezone"] or definition["timezone"]
    is_its_own = definition["name"] in schedule_names(definition["job_type"])
    if (
        schedule is None
        or not is_its_own
        or (schedule, zone) == (definition["schedule"], definition["timezone"])
    ):
        return None
    return schedule if zone == definition["timezone"] else f"{schedule} in {zone}"


def find_fires(name: str) -> Context:
    """Return the next fires of one definition: when, and what is odd about them."""
    definition = _require_schedule(name)
    next_fires = words.preview(definition["schedule"], definition["timezone"], as_of())
    return {"definition": definition, "fires": next_fires, "words": words}


def find_history(name: str) -> Context:
    """Return the latest runs of one definition and the fires it missed."""
    definition = _require_schedule(name)
    latest = schedules.read_latest_runs(reading(), [definition["id"]]).get(definition["id"], ())
    return {
        "definition": definition,
        "runs": schedules.list_runs(reading(), definition["id"]),
        "missed": schedules.list_missed(reading(), definition["id"]),
        "most_missed": schedules.CAP,
        "odd": find_oddities(latest, definition["timezone"]),
        "words": words,
    }


def find_missed(name: str) -> Context:
    """Return a page of the fires that one definition missed."""
    definition = _require_schedule(name)
    filters = params.from_request()
    rows = schedules.list_missed_page(reading(), definition["id"], filters)
    return {"definition": definition, "filters": filters, "rows": rows, "words": words}


def find_audit(name: str) -> Context:
    """Return what people did to one definition."""
    definition = _require_schedule(name)
    return {
        "definition": definition,
        "rows": audit.list_entries_of(reading(), "schedule", name),
        "describe_changes": describe_changes,
        "describe_all_changes": describe_all_changes,
        "action_label": action_label,
    }


def schedule_twin(context: Context) -> Json:
    """Return ``/schedules/<name>.json``: the definition, its next fires, missed fires, runs and audit."""
    definition: RowMapping = context["definition"]
    following = words.preview(definition["schedule"], definition["timezone"], as_of())
    history = find_history(definition["name"])
    return {
        **{column.name: definition[column.name] for column in job_definitions.c},
        **{name: redact(definition[name]) for name in ("payload", "error")},
        "standstill": definition["standstill"],
        "words": words.in_words(definition["schedule"]),
        "code_says": context["code_says"],
        "next_fires": [
            {"at": fire.at, "local": fire.local.isoformat(), "note": fire.note} for fire in following
        ],
        "missed_fires": [
            {key: value for key, value in row.items() if key != "among"} for row in history["missed"]
        ],
        "missed_fires_count": history["missed"][0]["among"] if history["missed"] else 0,
        "all_missed_fires": f"{PATH}/{definition['name']}/missed.json",
        "all_runs": f"/runs.json?schedule={definition['name']}",
        "runs": [
            dict(row)
            | {
                "last_error": redact(row["last_error"]),
                "odd": [
                    {"word": one.word, "sentence": one.sentence} for one in history["odd"].get(row["id"], [])
                ],
            }
            for row in history["runs"]
        ],
        "audit": [
            redact_row(row) for row in audit.list_entries_of(reading(), "schedule", definition["name"])
        ],
    }


def _run_question(name: str) -> str:
    definition = schedules.find_schedule(reading(), name)
    question = f"Enqueue one run of {name} now? Its schedule goes on as before."
    reason = words.standstill_reason(definition) if definition else ""
    return f"{question} But {reason}: the run waits." if reason else question


add_page(
    blueprint,
    PATH,
    "schedules/page.html",
    find_schedules,
    twin=schedules_twin,
    columns=COLUMNS,
    fragments={"list": "schedules/_list.html"},
    fields=FIELDS,
)
add_page(
    blueprint,
    ONE,
    "schedule/page.html",
    find_schedule,
    twin=schedule_twin,
    fragments={
        "state": "schedule/_state.html",
        "facts": "schedule/_facts.html",
        "fires": ("schedule/_fires.html", find_fires),
        "history": ("schedule/_history.html", find_history),
        "audit": ("schedule/_audit.html", find_audit),
    },
)
add_page(
    blueprint,
    f"{ONE}/missed",
    "schedule/missed.html",
    find_missed,
    twin=rows_twin(dict),
    columns=["id", "scheduled_for", "until_at", "reason", "noted_at"],
)

add_verb(
    blueprint,
    f"{ONE}/run",
    "schedule.run",
    lambda connection, actor, reason, name: definitions.run_now(connection, name, actor, reason),
    question=_run_question,
    back=lambda name: f"{PATH}/{name}",
)
add_verb(
    blueprint,
    f"{ONE}/pause",
    "schedule.pause",
    lambda connection, actor, reason, name: definitions.pause(connection, name, actor, reason),
    question=lambda name: format_question("schedule.pause", name),
    back=lambda name: f"{PATH}/{name}",
)
add_verb(
    blueprint,
    f"{ONE}/resume",
    "schedule.resume",
    lambda connection, actor, reason, name: definitions.resume(connection, name, actor, reason),
    question=lambda name: (
        f"Let {name} fire again, from now on? What it would have fired meanwhile is not made up for."
    ),
    back=lambda name: f"{PATH}/{name}",
)
