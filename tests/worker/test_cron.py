"""Schedules: which text is one, and when it fires, above all on days whose clocks change."""

import itertools
import os
import time
import tracemalloc
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wakeboard.core.time.cron import ALIASES, Cron, CronError, Fire, ordinal, read_schedule
from wakeboard.core.time.zones import check_timezone

# The oracle looks at every minute around every change of clocks in so many years.
YEARS = int(os.environ.get("TEST_CRON_YEARS", "1"))
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
ZONES = [
    "America/New_York",
    "America/Sao_Paulo",
    "America/Santiago",
    "America/St_Johns",
    "Europe/Paris",
    "Africa/Casablanca",
    "Africa/Cairo",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Pacific/Apia",
]
EVERY_MONTH, EVERY_DAY = set(range(1, 13)), set(range(7))
# text; minutes, hours, months, weekdays (0 is Monday) that match. By hand: the oracle does not read cron.
SCHEDULES: list[tuple[str, set[int], set[int], set[int], set[int]]] = [
    ("30 2 * * *", {30}, {2}, EVERY_MONTH, EVERY_DAY),
    ("0,15,30,45 0-3 * * *", {0, 15, 30, 45}, {0, 1, 2, 3}, EVERY_MONTH, EVERY_DAY),
    ("5 0,23 * * sun", {5}, {0, 23}, EVERY_MONTH, {6}),
    ("0-59 1 * 3,4,10,11 *", set(range(60)), {1}, {3, 4, 10, 11}, EVERY_DAY),
    ("*/15 * * * *", {0, 15, 30, 45}, set(range(24)), EVERY_MONTH, EVERY_DAY),
    ("*/15 2 * * *", {0, 15, 30, 45}, {2}, EVERY_MONTH, EVERY_DAY),
    ("20 */2 * * 6-7", {20}, set(range(0, 24, 2)), EVERY_MONTH, {5, 6}),
    ("*/10 23 * * sat", {0, 10, 20, 30, 40, 50}, {23}, EVERY_MONTH, {5}),
]


PAST_THE_HOUR = (
    "The minute field '*/90' has a step of 90 and a range of 60 values, and begins anew each hour: it would "
    "fire at minute 0 alone. Write 0 for that. For every 90 minutes write two schedules, '0 */3 * * *' and "
    "'30 1-23/3 * * *'."
)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def fires(text: str, zone: str, after: datetime, count: int) -> list[Fire]:
    return list(itertools.islice(Cron.parse(text).fires(zone, after), count))


def times(text: str, zone: str, after: datetime, count: int) -> list[str]:
    return [f"{fire.local:%d %H:%M %z}" for fire in fires(text, zone, after, count)]


def minutes_by_the_rule(
    schedule: tuple[str, set[int], set[int], set[int], set[int]], zone: str, start: datetime, end: datetime
) -> Iterator[datetime]:
    """The oracle: every UTC minute of [start, end) in turn, by the rule of the module's first lines."""
    text, minutes, hours, months, weekdays = schedule
    by_elapsed_time = text.split()[0].startswith("*") or text.split()[1].startswith("*")

    def matches(wall: datetime) -> bool:
        in_time = wall.minute in minutes and wall.hour in hours
        return in_time and wall.month in months and wall.weekday() in weekdays

    moment, tz = start, ZoneInfo(zone)
    latest_seen = (start - MINUTE).astimezone(tz).replace(tzinfo=None)
    while moment < end:
        wall = moment.astimezone(tz).replace(tzinfo=None, fold=0)
        if by_elapsed_time:
            due = matches(wall)
        else:
            new = range(1, (wall - latest_seen) // MINUTE + 1)
            due = any(matches(latest_seen + minute * MINUTE) for minute in new)
        if due:
            yield moment
        latest_seen = max(latest_seen, wall)
        moment += MINUTE


def changes(zone: str, start: datetime, end: datetime) -> Iterator[datetime]:
    tz = ZoneInfo(zone)
    for hour in range((end - start) // timedelta(hours=1)):
        moment = start + timedelta(hours=hour)
        if moment.astimezone(tz).utcoffset() != (moment + timedelta(hours=1)).astimezone(tz).utcoffset():
            yield moment


def assert_as_the_oracle(zone: str, start: datetime, end: datetime) -> None:
    for schedule in SCHEDULES:
        later = Cron.parse(schedule[0]).fires(zone, start - MINUTE)
        found = [fire.at for fire in itertools.takewhile(lambda fire: fire.at < end, later)]
        assert found == list(minutes_by_the_rule(schedule, zone, start, end)), (schedule[0], zone, start)


@pytest.mark.parametrize("zone", ZONES)
def test_every_change_of_clocks_is_as_the_oracle_says(zone: str) -> None:
    for change in changes(zone, utc(2027 - YEARS, 1, 1), utc(2027, 1, 1)):
        assert_as_the_oracle(zone, change - 1.4 * DAY, change + 1.6 * DAY)


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("Pacific/Apia", utc(2011, 12, 30, 10)),
        ("America/Sao_Paulo", utc(2018, 11, 4, 3)),
        ("America/Sao_Paulo", utc(2018, 2, 18, 2)),
        ("America/St_Johns", utc(2010, 11, 7, 2)),
        ("America/St_Johns", utc(2010, 3, 14, 3)),
        ("America/Caracas", utc(2016, 5, 1, 7)),
        ("Asia/Pyongyang", utc(2015, 8, 14, 15)),
        ("Asia/Tehran", utc(2021, 9, 21, 19)),
    ],
)
def test_the_odd_changes_of_history_are_as_the_oracle_says(zone: str, change: datetime) -> None:
    assert_as_the_oracle(zone, change - 1.5 * DAY, change + 1.5 * DAY)


@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe", "America/Santiago"])
def test_asking_anew_from_any_minute_gives_the_next_fire_of_the_list(zone: str) -> None:
    for change in changes(zone, utc(2026, 1, 1), utc(2027, 1, 1)):
        for text in ("30 2 * * *", "0,30 0-3 * * *", "*/20 1,2 * * *"):
            known = [fire.at for fire in fires(text, zone, change - DAY, 40)]
            for minute in range(-180, 300, 7):
                after = change + minute * MINUTE + timedelta(seconds=minute % 60)
                assert Cron.parse(text).next_fire(zone, after) == next(at for at in known if at > after)


def test_clocks_that_go_back_past_midnight_return_to_the_day_before() -> None:
    # At 00:01 on Sunday, 7 November 2010, St John's went back to 23:01 on Saturday.
    second_ten_past = utc(2010, 11, 7, 2, 40)
    for minute in range(1, 90):
        after = utc(2010, 11, 7, 2, 31) - minute * MINUTE
        upcoming = Cron.parse("*/10 23 * * sat").fires("America/St_Johns", after)
        assert second_ten_past in itertools.islice((fire.at for fire in upcoming), 8), after


def test_a_time_swallowed_by_a_jump_fires_once_right_after_and_says_why() -> None:
    swallowed, following = fires("30 2 * * *", "America/New_York", utc(2026, 3, 8), 2)
    assert swallowed.at == utc(2026, 3, 8, 7)
    assert swallowed.note == (
        "02:30 does not exist on 8 March 2026 in America/New_York: "
        "the clocks jump from 02:00 to 03:00; it fires right after"
    )
    assert following.note is None
    assert f"{following.local:%d %H:%M}" == "09 02:30"


def test_several_times_swallowed_together_fire_once_even_beside_a_time_that_exists() -> None:
    (fire,) = fires("0,30 2,3 * * *", "America/New_York", utc(2026, 3, 8), 1)
    assert fire.at == utc(2026, 3, 8, 7)
    assert fire.note is not None
    assert fire.note.startswith("02:00 and 02:30 do not exist on 8 March 2026")
    assert fire.note.endswith("they fire once, right after")
    assert times("0,30 2,3 * * *", "America/New_York", fire.at, 1) == ["08 03:30 -0400"]


def test_a_time_that_comes_twice_fires_the_first_time_and_says_why() -> None:
    twice, following = fires("30 1 * * *", "America/New_York", utc(2026, 11, 1), 2)
    assert twice.at == utc(2026, 11, 1, 5, 30)
    assert twice.note == (
        "01:30 comes twice on 1 November 2026 in America/New_York: "
        "the clocks go back from 02:00 to 01:00; it fires the first time only"
    )
    assert following.at == utc(2026, 11, 2, 6, 30)


def test_intervals_go_by_elapsed_time_across_both_changes() -> None:
    spring = fires("*/15 * * * *", "America/New_York", utc(2026, 3, 8, 5), 16)
    autumn = fires("*/15 * * * *", "America/New_York", utc(2026, 11, 1, 4), 16)
    for run in (spring, autumn):
        assert {b.at - a.at for a, b in itertools.pairwise(run)} == {timedelta(minutes=15)}
    (note,) = [fire.note for fire in spring if fire.note]
    assert note.startswith("02:00 to 02:45 do not exist on 8 March 2026")
    assert [fire.note.rpartition(" ")[2] for fire in autumn if fire.note] == ["first"] * 4 + ["second"] * 4


def test_a_day_that_never_was_is_named_with_both_dates() -> None:
    (fire,) = fires("0 12 * * *", "Pacific/Apia", utc(2011, 12, 30), 1)
    assert f"{fire.local:%d %H:%M}" == "31 00:00"
    assert fire.note is not None
    assert "from 00:00 on 30 December 2011 to 00:00 on 31 December 2011" in fire.note


def test_half_an_hour_back_on_lord_howe_loses_nothing() -> None:
    assert times("*/15 2 * * *", "Australia/Lord_Howe", utc(2026, 4, 4, 14), 4) == [
        "05 02:00 +1030",
        "05 02:15 +1030",
        "05 02:30 +1030",
        "05 02:45 +1030",
    ]


def test_a_fire_is_always_later_than_the_time_asked_about() -> None:
    assert Cron.parse("0 12 * * *").next_fire("UTC", utc(2026, 1, 1, 12)) == utc(2026, 1, 2, 12)
    assert Cron.parse("0 12 * * *").next_fire("UTC", utc(2026, 1, 1, 11, 59, 59)) == utc(2026, 1, 1, 12)
    assert Cron.parse("* * * * *").next_fire("UTC", utc(2026, 1, 1, 12, 0, 30)) == utc(2026, 1, 1, 12, 1)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("0 0 29 2 *", utc(2028, 2, 29)),
        ("0 0 1 jan *", utc(2027, 1, 1)),
        ("0 9 13 * fri", utc(2026, 6, 5, 9)),
        ("0 9 */13 * fri", utc(2026, 8, 14, 9)),
        ("0 0 L * *", utc(2026, 6, 30)),
        ("0 0 * * mon#1", utc(2026, 7, 6)),
        ("0 0 * * 5L", utc(2026, 6, 26)),
        ("0 0 * * 7", utc(2026, 6, 7)),
        ("30 3 * * mon-fri", utc(2026, 6, 2, 3, 30)),
    ],
)
def test_days_are_read_as_debian_reads_them(text: str, first: datetime) -> None:
    assert Cron.parse(text).next_fire("UTC", utc(2026, 6, 1, 12)) == first


@pytest.mark.parametrize("alias", ALIASES)
def test_a_named_schedule_fires_as_its_five_fields_do(alias: str) -> None:
    spelled = Cron.parse(ALIASES[alias][0])
    named = Cron.parse(alias.upper())
    assert named.next_fire("Europe/Paris", utc(2026, 6, 1, 12)) == spelled.next_fire(
        "Europe/Paris", utc(2026, 6, 1, 12)
    )
    assert named.describe()[0].isupper()


def test_days_are_counted_as_people_count() -> None:
    assert [ordinal(day) for day in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 31, 101, 111, 122)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "31st", "101st", "111th",
        "122nd",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 9 31 * *", "At 09:00 on the 31st day of every month"),
        ("0 9 2,12,22,23 * *", "At 09:00 on the second, the 12th, the 22nd, and the 23rd day of month"),
        ("0 9 21 * mon", "At 09:00 on the 21st day of month and on Monday"),
        ("*/21 9 * * *", "Every 21st minute from 09:00 through 09:59"),
        ("0 9 15 * *", "At 09:00 on the 15th day of every month"),
        ("*/90 * * * *", "At the start of every hour"),
        ("*/60 * * * *", "At the start of every hour"),
        ("*/45 * * * *", "At minutes 0 and 45 of every hour"),
        ("0-10/20 5/20 * * *", "At 05:00 every day"),
        ("0 */24 * * *", "At 00:00 every day"),
        ("*/20 */24 * * *", "Every 20th minute from 00:00 through 00:59"),
        ("0 0 */31 */12 *", "At 00:00 on January 1"),
        ("0 0 1 jan/6 *", "At 00:00 on the first day of January and July"),
        ("0 0 * * */7", "At 00:00 on Sunday"),
        ("0 0 */20 * fri", "At 00:00 on every 20th day of month if it's on Friday"),
        ("10-10/5 * * * *", "Every fifth minute from 10 through 59 of every hour"),
    ],
)
def test_a_schedule_counts_its_days_as_people_do(text: str, words: str) -> None:
    assert Cron.parse(text).describe() == words


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "*/90 * * * *",
            PAST_THE_HOUR,
        ),
        ("*/61 * * * *", "it would fire at minute 0 alone"),
        ("30,*/90 * * * *", "The minute field '*/90'"),
        ("5/90 * * * *", "a range of 55 values, and begins anew each hour: it would fire at minute 5 alone."),
        (
            "0-10/20 * * * *",
            "a range of 11 values, and begins anew each hour: it would fire at minute 0 alone.",
        ),
        ("10-10/5 * * * *", "a step and a range of one value: write 10 for that one"),
        ("10-10/1 * * * *", "a step and a range of one value"),
        ("0 */25 * * *", "at hour 0 alone. Write 0 for that. For every second day write '*/2'"),
        ("0 0 */32 * *", "at day of month 1 alone. Write 1 for that. For every second month"),
        ("0 0 1 */13 *", "at month 1 alone. Write 1 for that. No schedule counts years."),
        ("0 0 1 mar-jun/5 *", "The month field 'mar-jun/5' has a step of 5 and a range of 4 values"),
        ("0 0 * * */8", "at day of week 0 alone. Write 0 for that. No schedule counts weeks"),
        ("0 0 * * mon-fri/6", "at day of week 1 alone"),
    ],
)
def test_a_step_past_its_range_is_refused_with_what_it_would_do(text: str, says: str) -> None:
    with pytest.raises(CronError) as refused:
        read_schedule(text)
    assert says in str(refused.value)
    assert str(refused.value).endswith(".")
    assert Cron.parse(text).next_fire("UTC", utc(2026, 1, 1)), "one that is there already goes on as it did"


@pytest.mark.parametrize(
    "text",
    [
        *("*/60 * * * *", "*/45 * * * *", "5/55 * * * *", "0-10/11 * * * *", "0-10/3 * * * *"),
        *("0 */24 * * *", "0 0 */31 * *", "0 0 1 */12 *", "0 0 1 jan-jun/6 *", "0 0 * * */7", "@daily"),
        *("0 9 13 * fri#2", "0 0 L * *"),
    ],
)
def test_a_step_within_its_range_is_taken(text: str) -> None:
    assert read_schedule(text).text == text


@pytest.mark.parametrize(
    "text", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 2,4,6 *", "0 0 */30 2 1#2", "*/5 * */30 2 1#2"]
)
def test_a_schedule_without_any_day_never_fires(text: str) -> None:
    started = time.thread_time()
    assert Cron.parse(text).next_fire("Europe/Paris", utc(2026, 1, 1)) is None
    assert time.thread_time() - started < 0.5
    assert Cron.parse(text).describe()


HOSTILE = [
    "0 0 1--100000000 * *",
    "0 0 1-100000000 * *",
    "*/999999999999 * * * *",
    "0 0 1 1 " + "9" * 150,
    "0" * 10_000,
    "* " * 5_000,
    "1," * 5_000 + "1 * * * *",
    "0/0 * * * *",
    "\0 * * * *",
    "٣ * * * *",
    "0 0 * * mon#" + "9" * 100,
    "0 0 L/2 * *",
    "R R * * *",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_refused_fast_and_in_little_memory(text: str) -> None:
    tracemalloc.start()
    started = time.thread_time()
    with pytest.raises(CronError) as refused:
        Cron.parse(text)
    elapsed, (_, peak) = time.thread_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert elapsed < 0.05
    assert peak < 10 * 2**20
    assert len(str(refused.value)) < 400


def test_the_dearest_text_that_is_allowed_is_read_fast() -> None:
    dearest = "*/1," * 40 + "* * * * *"
    started = time.thread_time()
    Cron.parse(dearest)
    assert time.thread_time() - started < 0.05


def test_a_weekly_interval_costs_little_to_look_up() -> None:
    started = time.thread_time()
    assert Cron.parse("*/5 * * * 1").next_fire("Europe/Paris", utc(2026, 6, 2)) == utc(2026, 6, 7, 22)
    assert time.thread_time() - started < 0.05


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("60 * * * *", "minute field '60'"),
        ("* 22-2 * * *", "hour field '22-2'"),
        ("* * 0 * *", "day of month field '0'"),
        ("* * * 13 *", "month field '13'"),
        ("* * * foo *", "month field 'foo'"),
        ("* * * * 8", "day of week field '8'"),
        ("* * * * fri-sun", "day of week field 'fri-sun'"),
        ("*/0 * * * *", "minute field '*/0'"),
        ("-*/5 * * * *", "minute field '-*/5'"),
        ("1,, * * * *", "minute field '1,,'"),
        ("* * * *", "4 fields"),
        ("0 0 0 * * *", "6 fields"),
        ("", "0 fields"),
        ("@reboot", "not a time"),
        ("@fortnightly", "not a known name"),
    ],
)
def test_a_wrong_schedule_is_refused_by_the_name_of_its_field(text: str, words: str) -> None:
    with pytest.raises(CronError) as refused:
        Cron.parse(text)
    assert words in str(refused.value)
    assert str(refused.value).endswith(".")


_numbers = st.integers(0, 61).map(str)
_values = st.one_of(
    _numbers, st.sampled_from(["*", "sun", "Fri", "jan", "DEC", "L", "LW", "5L", "1#2", "mon#5"])
)
_terms = st.one_of(
    _values, st.builds("{}-{}".format, _values, _values), st.builds("{}/{}".format, _values, _numbers)
)
_fields = st.lists(_terms, min_size=1, max_size=4).map(",".join)
_valid_days = st.sampled_from(["*", "1-7", "*/2", "15,L", "LW", "31"])
_valid_times = st.sampled_from(["*", "*/7", "0", "3-9", "5,10", "1-20/3"])


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.one_of(st.lists(_fields, min_size=5, max_size=5).map(" ".join), st.text(max_size=30)))
def test_any_text_is_either_refused_with_a_sentence_or_can_be_explained_and_asked(text: str) -> None:
    try:
        cron = Cron.parse(text)
    except CronError as refused:
        assert str(refused).endswith(".")
    else:
        assert cron.describe()
        cron.next_fire("America/New_York", utc(2026, 3, 7))


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.builds(
        "{} {} {} * {}".format, _valid_times, _valid_times, _valid_days, st.sampled_from(["*", "1-5", "sun"])
    ),
    st.sampled_from(ZONES),
    st.datetimes(datetime(1975, 1, 1), datetime(2090, 1, 1)),
)
def test_fires_only_ever_go_forward(text: str, zone: str, after: datetime) -> None:
    found = [fire.at for fire in fires(text, zone, after.replace(tzinfo=UTC), 30)]
    assert all(a < b for a, b in itertools.pairwise([after.replace(tzinfo=UTC), *found]))


def test_the_text_is_kept_and_the_words_explain_it() -> None:
    cron = Cron.parse("  30   2 * *  Mon-Fri ")
    assert cron.text == "30 2 * * Mon-Fri"
    assert cron.describe() == "At 02:30 on Monday through Friday"
    assert cron == Cron.parse("30 2 * * Mon-Fri")


def test_a_time_without_zone_or_out_of_this_world_is_refused() -> None:
    for after in (datetime(2026, 1, 1), utc(1, 1, 1), utc(9999, 12, 31)):
        with pytest.raises(ValueError, match=r"\.$"):
            Cron.parse("* * * * *").next_fire("UTC", after)
    assert Cron.parse("0 0 29 2 *").next_fire("UTC", utc(9000, 12, 31)) is not None


@pytest.mark.parametrize(
    "name", ["UTC", "Europe/Paris", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "EST5EDT"]
)
def test_zones_are_known_by_their_names(name: str) -> None:
    assert check_timezone(name).key == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Mars/Base", "not a known time zone"),
        ("paris", "Europe/Paris"),
        ("europe/berlin", "Europe/Berlin"),
        ("America/New York", "America/New_York"),
        ("", "write one like UTC"),
        ("localtime", "write one like UTC"),
        ("right/UTC", "not a known"),
        ("../../etc/passwd", "not a known"),
        ("America", "not a known"),
        ("\0", "not a known"),
        ("x" * 10_000, "not a known"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_closest_names(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=r"^.{10,300}$") as refused:
        Cron.parse("* * * * *").next_fire(name, utc(2026, 1, 1))
    assert hint in str(refused.value)


def test_a_machine_without_zone_data_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from wakeboard.core.time import zones

    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    zones._zone_names.cache_clear()
    try:
        with pytest.raises(ValueError, match="install the Python package tzdata"):
            check_timezone("Mars/Base")
    finally:
        zones._zone_names.cache_clear()
