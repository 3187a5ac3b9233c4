"""How benchmarks tell what they found, and whether the README repeats it. Nothing is measured here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import bench, mixed, start
from benchmarks.backlogs import Moments
from benchmarks.pages import Times, print_times
from benchmarks.peer_dashboards import CrowdTimes, PageTimes, table, table_of_crowds

ROOT = Path(__file__).resolve().parent.parent
RATES = {
    "raw SQL, 1 connection": [9000.0, 9100.0],
    "Wakeboard, 1 worker": [5900.0, 6100.0],
    "Chancy, 1 process": [600.0, 800.0],
}


def test_a_share_is_told_of_the_medians_and_round_by_round() -> None:
    assert bench.shares([50.0, 100.0, 30.0], [100.0, 200.0, 40.0]) == (0.5, 0.5)
    assert bench.shares([50.0, 100.0, 30.0], [50.0, 200.0, 40.0]) == (1.0, 0.75)


def test_a_table_tells_the_median_and_the_share_of_what_is_beside() -> None:
    told = bench.table("Throughput: one", RATES, "runs/s", beside="raw SQL, 1 connection")
    assert "| Wakeboard, 1 worker | 6,000 | 5,900 | 6,100 | 0.66 | 0.66 |" in told


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    rows = re.findall(r"^\| (?:runs/s|commit|enqueue/s).*\|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows
    assert [row for row in rows if row.replace("**", "") not in results] == []


def test_the_command_that_runs_all_is_bash_and_names_what_is_there() -> None:
    script = ROOT / "benchmarks" / "run"
    subprocess.run(["bash", "-n", script], check=True)
    (names,) = re.findall(r"^names=\((.*)\)$", script.read_text(), re.MULTILINE)
    known = {
        file.stem
        for file in (ROOT / "benchmarks").glob("*.py")
        if '__name__ == "__main__"' in file.read_text()
    }
    assert known - set(names.split()) == {"ages"}


def test_a_page_of_somebody_else_that_is_faster_is_marked_and_one_that_failed_is_told() -> None:
    found = {
        "overview": {
            ("Wakeboard", 10): PageTimes(9.0, [4.0, 4.0]),
            ("PgQueuer", 10): PageTimes(8.0, [3.0, 3.0]),
            ("pg-boss", 10): PageTimes(error="no answer in 30 s"),
        },
        "all jobs": {("Wakeboard", 10): PageTimes(9.0, [4.0, 4.0])},
    }
    overview, jobs = table(found, ["Wakeboard", "PgQueuer", "pg-boss"], 10).splitlines()[-2:]
    assert overview == "| overview | 4.0 | 4.0 | 9 | **3.0** | 3.0 | 8 | no answer in 30 s | – | – |"
    assert jobs == "| all jobs | **4.0** | 4.0 | 9 | – | – | – | – | – | – |"


def test_what_was_not_answered_in_time_is_told_and_counts_as_that_time() -> None:
    crowds = {
        ("ours", 10): CrowdTimes([5.0, 7.0], [], 2.0),
        ("theirs", 10): CrowdTimes([30_000.0] * 3, ["late"] * 3, 2.0),
    }
    ours, theirs = table_of_crowds(crowds, 20, ["overview"]).splitlines()[-2:]
    assert ours == "| ours | 10 | **6** | 7 | 7 | 1.0 | 0 |"
    assert theirs == "| theirs | 10 | 30000 | 30000 | 30000 | 0.0 | 3 (late) |"


def test_a_page_that_shows_less_at_the_smallest_size_is_told_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    large = Times(3.0, [2.1, 2.1], length=1000)
    found = {
        "/same": {10: Times(3.0, [1.0, 1.0], length=900), 20: large},
        "/less": {10: Times(3.0, [1.0, 1.0], length=100), 20: large},
    }
    print_times(found, "Pages", 50)
    told = capsys.readouterr().out
    assert "median over 2 times that at 10: 2, of which 1 show as much there;" in told
    assert "| `/less` | 1.0 | 2.1 | 2.1 | 3.0 | 2.10 | 0.10 |" in told


def test_a_worker_has_reached_its_later_rate_where_the_next_runs_are_nearly_as_quick() -> None:
    # 600 runs of 10 ms each, and from then on 1,000 a second.
    finished = [number * 0.01 for number in range(1, 601)] + [
        6 + number * 0.001 for number in range(1, 9_401)
    ]
    found = Moments(0.0, finished)
    assert start.later_rate(found) == pytest.approx(1_000)
    assert start.rate_between(found, 0, 500) == pytest.approx(100)
    assert start.full_rate_after(found) == 600


def test_the_old_rate_is_back_with_the_first_half_second_that_has_nine_tenths_of_it() -> None:
    before, busy = [900] * 6 + [1_000] * 4, [300] * 6
    assert mixed.old_rate([*before, *busy, 500]) == 2_000
    assert mixed.back_after([*before, *busy, 500, 899, 900, 1_000]) == 1.5
    assert mixed.format_back(mixed.back_after([*before, *busy, 500, 899])) == "more than 5"


def test_a_worker_that_was_slow_to_start_has_its_rate_of_the_end_as_the_old_one() -> None:
    counts = [100] * 10 + [300] * 6 + [800] * 6 + [1_000] * 4
    assert mixed.old_rate(counts) == 2_000
    assert mixed.back_after(counts) == 3.5


def test_runs_are_counted_by_half_seconds_around_a_disturbance() -> None:
    found = Moments(100.0, [95.2, 95.3, 100.0, 100.4, 100.5, 108.1])
    counts = mixed.by_steps(found, began=100.0, runs=1_000)
    assert [count for count in counts if count] == [2, 2, 1]
    assert counts[0] == 2 and counts[10] == 2


def test_a_backlog_that_ended_before_the_disturbance_did_is_no_result() -> None:
    with pytest.raises(SystemExit, match="all was done"):
        mixed.by_steps(Moments(100.0, [100.0, 101.0]), began=100.0, runs=2)
