"""Why a run that waits is not running; the question and the words are ``wakeboard.reporting.diagnosis``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from wakeboard.reporting.diagnosis.question import QUESTION
from wakeboard.reporting.diagnosis.reasons import Reason, reasons

COUNTS = ("running", "ahead", "workers", "slots", "busy", "draining", "others")


def waiting(connection: Connection, run_id: int) -> tuple[dict[str, int], list[Reason]]:
    """Return what stands before run ``run_id``, counted, and why it waits; both empty when it does not.

    Counted: ``running`` runs of its type now, ``ahead`` due runs of its type that are claimed first (both at
    most CAP + 1), ``workers`` alive that run its type and take work, their ``slots``, how many are ``busy``,
    ``draining`` workers that run it and would take it once they are undrained, ``others`` alive workers of
    any type.
    """
    row: Any = connection.exec_driver_sql(QUESTION, {"id": run_id}).mappings().one_or_none()
    if row is None:
        return {}, []
    return {name: row[name] for name in COUNTS}, reasons(row)
