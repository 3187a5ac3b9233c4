"""The question before a verb, in the dialog of its button and on its confirm page. Pure."""

from __future__ import annotations

# By action; {} is the id or name of the thing.
QUESTIONS = {
    "lease.release": (
        "Take run {} from its worker? It counts as a lost attempt, and another worker may start it."
    ),
    "operation.abort": "Abort operation {}? What was moved stays moved; the others are left as they are.",
    "run.again": "Run {} again? A new run is enqueued; this one stays as it is.",
    "run.cancel": (
        "Cancel run {}? If it waits it will not run; if it runs it is asked to stop; if it is dead it is "
        "dismissed, and its errors stay readable."
    ),
    "schedule.pause": "Pause {}? It does not fire until it is resumed; runs that exist stay.",
    "type.pause": "Pause type {}? No worker starts a run of it until it is resumed; what runs goes on.",
    "worker.drain": "Let worker {} claim nothing new? What it runs goes on to its end.",
    "worker.stop": (
        "Stop worker {}? It claims nothing new, lets what it runs end if that is soon, and gives back the "
        "rest."
    ),
}
# Of a cancel, by the state of the run.
CANCEL_QUESTIONS = {
    "queued": "Cancel run {}? It will not run.",
    "failed": "Cancel run {}? It is not tried again.",
    "running": "Cancel run {}? It is asked to stop.",
    "dead": (
        "Dismiss run {}? It is cancelled and no longer counts as dead; its errors stay readable, and Retry "
        "brings it back."
    ),
}


def format_question(action: str, name: object, status: str | None = None) -> str:
    """Return the question of ``action`` on the thing ``name``; ``status``: of a run to cancel, if known."""
    pattern = CANCEL_QUESTIONS.get(status or "") if action == "run.cancel" else None
    return (pattern or QUESTIONS[action]).format(name)
