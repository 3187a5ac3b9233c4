"""An operation on many runs in words: what it does, what it has done, why it has stopped. Pure."""

from __future__ import annotations

from datetime import datetime

from wakeboard.bulk import rules
from wakeboard_dashboard.text.formats import Row, duration, number, plural

# By verb: what would happen.
MEANS = {
    "retry": "They become due; dead and cancelled ones start afresh.",
    "cancel": "What waits will not run; what runs is asked to stop; what is dead is dismissed.",
    "again": "Each ended run gets a new run with the same payload.",
}
# By verb: where no run would be moved.
NONE = {
    "retry": "None of them would be retried now. Retry makes due what waits for later, and starts what is"
    " dead or cancelled afresh.",
    "cancel": "None of them would be cancelled now. Cancel ends what waits or runs, and dismisses what"
    " is dead.",
    "again": "None of them would be run again now. Run again makes a new run of each that has ended.",
}
ASKS = {
    "retry": f"Retry {{runs}}? {MEANS['retry']}",
    "cancel": f"Cancel {{runs}}? {MEANS['cancel']}",
    "again": f"Run {{runs}} again? {MEANS['again']}",
}
# Why runs that were chosen one by one need caution; a filter leaves them out.
CAREFUL = {
    "paused": "of a paused type: nothing of it runs until someone resumes it",
    "unconfirmed": "with an effect that no one has confirmed: look at the receiving side first",
}
DONE = {"retry": "retried", "cancel": "cancelled", "again": "run again"}
DOING = {"retry": "Retrying", "cancel": "Cancelling", "again": "Running again"}
TITLES = {"retry": "Retry", "cancel": "Cancel", "again": "Run again"}
# The badge (a state's colour) of each status.
BADGES = {
    "running": "running",
    "paused": "paused",
    "finished": "succeeded",
    "stopped": "failed",
    "aborted": "cancelled",
}
# What becomes of a run that is moved, by verb and the state it is in.
BECOMES = {
    ("retry", "failed"): "due now instead of after their backoff",
    ("retry", "queued"): "due now instead of later",
    ("retry", "dead"): "queued afresh",
    ("retry", "cancelled"): "queued afresh",
    ("cancel", "queued"): "cancelled",
    ("cancel", "failed"): "cancelled, not tried again",
    ("cancel", "dead"): "dismissed",
    ("cancel", "running"): "asked to stop",
    ("again", "succeeded"): "enqueued once more",
    ("again", "dead"): "enqueued once more",
    ("again", "cancelled"): "enqueued once more",
}


def title(operation: Row) -> str:
    """Return ``Retry 1 214 runs``."""
    return f"{TITLES.get(operation['verb'], operation['verb'])} {plural(operation['total'], 'run')}"


def sentence(operation: Row, now: datetime, *, is_alive: bool) -> tuple[bool, str]:
    """Return (whether it needs a person, what is so now). ``is_alive``: some worker is."""
    status = operation["status"]
    if status == "running":
        return _running(operation, now, is_alive=is_alive)
    if status == "paused":
        return False, f"Paused after {_so_far(operation)}. Nothing is moved until it is resumed."
    if status == "stopped":
        return True, f"It stopped by itself after {_so_far(operation)}. {operation['note'] or ''}".strip()
    if status == "aborted":
        rest = operation["total"] - operation["done"] - operation["skipped"]
        return False, f"Aborted after {_so_far(operation)}; {plural(rest, 'run')} left as they are."
    return False, f"Finished: {_so_far(operation)}."


def _running(operation: Row, now: datetime, *, is_alive: bool) -> tuple[bool, str]:
    if not is_alive:
        return True, "No worker is alive to move them. Start one: wakeboard worker --app MODULE."
    canary = operation["canary_run_id"]
    if canary and operation["canary_outcome"] is None:
        return False, f"Run {canary} went first, as a canary. The others wait for its end."
    doing = DOING.get(operation["verb"], "Moving")
    seconds = left_seconds(operation, now)
    if seconds is not None:
        pace = number(operation["per_minute"])
        return False, f"{doing}, {pace} a minute: {_so_far(operation)}, about {duration(seconds)} to go."
    return False, f"{doing}: {_so_far(operation)} so far."


def left_seconds(operation: Row, now: datetime) -> float | None:
    """Return for how long the pace lets it go on, None without a pace."""
    if not operation["per_minute"] or operation["status"] != "running":
        return None
    rest = operation["total"] - operation["done"] - operation["skipped"]
    return float(rest * 60 / operation["per_minute"])


def _so_far(operation: Row) -> str:
    moved, asked = operation["done"] - operation["asked"], operation["asked"]
    parts = [f"{plural(moved, 'run')} {DONE.get(operation['verb'], 'moved')}"] if moved or not asked else []
    parts += [f"{plural(asked, 'run')} asked to stop"] if asked else []
    parts += [f"{number(operation['skipped'])} left as they were"] if operation["skipped"] else []
    return ", ".join(parts)


def left_words(why: str, status: str | None = None) -> str:
    """Return why runs are left, in words."""
    return f"{status}" if why == "state" and status else rules.SKIP_REASONS.get(why, why)
