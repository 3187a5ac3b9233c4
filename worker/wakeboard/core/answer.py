"""What a person is told after asking for a move. Losing a race is a normal answer, never an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Result = Literal["done", "asked", "already", "forbidden", "locked", "denied", "missing", "invalid"]

# HTTP status and exit code of each result: done and already are success, asked is on its way.
HTTP: dict[str, int] = {
    "done": 200,
    "asked": 202,
    "already": 200,
    "forbidden": 409,
    "locked": 409,
    "denied": 403,
    "missing": 404,
    "invalid": 400,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one verb on one target.

    ``id`` is the target's (a run id, or a name), ``status`` what it is now, ``message`` a sentence.
    ``is_held``: its run waits all the same, because the type is paused. ``is_refused``: by the database, for
    a rule of a table or a trigger of somebody's own.
    """

    id: int | str
    status: str | None
    result: Result
    message: str
    is_held: bool = False
    is_refused: bool = False

    @property
    def changed(self) -> bool:
        """Whether anything is different now."""
        return self.result in ("done", "asked")

    @property
    def ok(self) -> bool:
        """Whether the person has what they asked for."""
        return self.result in ("done", "asked", "already")

    @property
    def http_status(self) -> int:
        """The status code of an HTTP answer."""
        return HTTP[self.result]

    def body(self) -> dict[str, object]:
        """Return the JSON body of DESIGN's verbs."""
        return {"id": self.id, "status": self.status, "changed": self.changed, "message": self.message}
