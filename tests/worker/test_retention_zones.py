"""The zone map: what was looked at is not looked at again before something there can have expired."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wakeboard.maintenance.retention import zone_map
from wakeboard.maintenance.retention.zone_map import Zone, ZoneMap


def test_an_unknown_table_is_looked_at_from_its_beginning() -> None:
    assert ZoneMap().next_range(0, now=100) == (0, None)


def test_a_zone_that_is_not_due_is_passed_over() -> None:
    zones = ZoneMap()
    zones.put(0, Zone(1000, 5, due_at=200))
    zones.put(1000, Zone(2000, 5, due_at=50))
    assert zones.next_range(0, now=100) == (1000, 2000)
    assert zones.next_range(2000, now=100) == (2000, None)
    assert zones.next_range(0, now=200) == (0, 1000)


def test_the_rest_of_a_zone_stays_as_due_as_it_was() -> None:
    zones = ZoneMap()
    zones.put(0, Zone(1000, 50, due_at=50, oldest_at=7))
    zones.put(0, Zone(400, 10, due_at=900))
    assert zones.next_range(0, now=100) == (400, 1000)


def test_ids_that_somebody_else_looked_at_are_unknown_and_so_due() -> None:
    zones = ZoneMap()
    zones.put(500, Zone(1000, 5, due_at=900))
    assert zones.next_range(0, now=100) == (0, 500)


def test_the_oldest_kept_run_is_that_of_all_zones() -> None:
    zones = ZoneMap()
    zones.put(0, Zone(10, 1, due_at=900, oldest_at=40))
    zones.put(10, Zone(20, 1, due_at=900, oldest_at=30))
    zones.put(20, Zone(30, 1, due_at=900))
    assert zones.oldest_at == 30


def test_many_zones_become_few_of_like_size() -> None:
    zones = ZoneMap()
    for number in range(5000):
        zones.put(number * 10, Zone(number * 10 + 10, 10, due_at=1000 + number))
    assert len(zones) <= zone_map.MOST_ZONES
    assert max(zone.rows for zone in zones._zones) <= 4 * 5000 * 10 / zone_map.MOST_ZONES
    assert sum(zone.rows for zone in zones._zones) == 50_000


_puts = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20), st.integers(0, 100)), min_size=1, max_size=60
)


@given(_puts, st.integers(0, 100))
def test_no_id_is_passed_over_before_its_time(puts: list[tuple[int, int, int]], now: int) -> None:
    """An id may be looked at too early, never too late: the last look at it said when."""
    zones, due = ZoneMap(), dict.fromkeys(range(1, 100), 0)
    for from_id, length, due_at in puts:
        zones.put(from_id, Zone(from_id + length, length, due_at))
        due |= dict.fromkeys(range(from_id + 1, from_id + length + 1), due_at)
    seen: set[int] = set()
    cursor = 0
    while True:
        cursor, to_id = zones.next_range(cursor, now)
        seen |= set(range(cursor + 1, 100 if to_id is None else to_id + 1))
        if to_id is None:
            break
        cursor = to_id
    assert {one for one, at in due.items() if at <= now} <= seen
