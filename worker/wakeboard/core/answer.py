"""The answer to a verb: what is so now, in a sentence. A lost race is a normal answer, never an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Result = Literal["done", "asked", "already", "forbidden", "locked", "denied", "missing", "invalid"]

HTTP_STATUSES: dict[Result, int] = {
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
    ``is_held``: its run waits all the same, because the type is paused. ``is_refused``: the database refused
    it, by a rule or a trigger on its tables that is not Wakeboard's.
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
        return HTTP_STATUSES[self.result]

    def body(self) -> dict[str, object]:
        """Return the answer as the body of a JSON response."""
        return {"id": self.id, "status": self.status, "changed": self.changed, "message": self.message}
