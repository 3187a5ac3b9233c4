"""What happens by the clock while a row goes on: a step every so often, schedules and the slots they owe."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from tests.support.faults.deployment import House
from tests.support.faults.truth_file import now
from tests.support.processes import wait_until

MINUTE = timedelta(minutes=1)
# How long after its time a fire may be written on a busy machine.
LATEST_FIRE_SECONDS = 30


def every(seconds: float, until: float, do: Callable[[], object]) -> None:
    """Call ``do`` each ``seconds``, by the clock since boot, until it says ``until``."""
    due = now() + seconds

    def is_over() -> bool:
        nonlocal due
        if now() >= due:
            do()
            due = now() + seconds
        return now() >= until

    wait_until(is_over, until - now() + 60)


class Clockwork:
    """Schedules of every minute whose first slots lie in the past, and the slots each has to keep."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._first: dict[int, datetime] = {}

    def add(self, count: int, minutes: int) -> None:
        """Add schedules that have missed ``minutes`` minutes, each of which they have to make up for."""
        insert = """
        INSERT INTO wakeboard.job_definitions (name, job_type, schedule, misfire, overlap, next_fire_at)
        SELECT 'clock-' || $1::int + n, 'effect', '* * * * *', 'all', 'allow',
            date_trunc('minute', now()) - make_interval(mins => $2::int)
        FROM generate_series(1, $3::int) AS n RETURNING id, next_fire_at
        """.replace("$1", "%(known)s").replace("$2", "%(minutes)s").replace("$3", "%(count)s")  # fmt: skip
        values = {"known": len(self._first), "minutes": minutes, "count": count}
        self._first |= dict(self._house.connection.execute(insert.encode(), values).fetchall())

    def stop(self) -> dict[int, list[datetime]]:
        """Switch the schedules off when none is late; return the slots due by then, by definition."""
        wait_until(self._is_on_time, LATEST_FIRE_SECONDS, "every schedule has fired what was due")
        stop = """
        WITH before AS (
            SELECT id, next_fire_at FROM wakeboard.job_definitions WHERE id = ANY(%s) FOR UPDATE
        ) UPDATE wakeboard.job_definitions AS d SET enabled = false FROM before WHERE before.id = d.id
        RETURNING d.id, before.next_fire_at
        """
        found = self._house.connection.execute(stop, (list(self._first),)).fetchall()
        return {one: _minutes(self._first[one], next_at) for one, next_at in found}

    def _is_on_time(self) -> bool:
        late = "SELECT 1 FROM wakeboard.job_definitions WHERE next_fire_at < now() AND id = ANY(%s) LIMIT 1"
        return self._house.connection.execute(late, (list(self._first),)).fetchone() is None


def _minutes(first: datetime, end: datetime) -> list[datetime]:
    return [first + number * MINUTE for number in range(round((end - first) / MINUTE))]
