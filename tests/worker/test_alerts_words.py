"""The words of a message, before anybody sends it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest

from wakeboard.alerts.finding import Finding
from wakeboard.alerts.messages import SUBJECT_CHARACTERS, Origin, write_message
from wakeboard.alerts.rule_state import RuleState

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
PLACE = Origin("42", "shop password=hunter2", "https://anna:hunter2@jobs.example.org")
FOUND = Finding(
    True, "3 runs died in the last 1 h: postgres://app:hunter2@db 3.", 3, 1, "count", ("--token hunter2",)
)


def test_a_message_tells_no_secret_that_stands_in_a_name_or_a_link() -> None:
    told = write_message("dead_runs", "dead_runs", "firing", FOUND, RuleState(), PLACE, NOON)
    assert "hunter2" not in str(told)
    assert told.subject == "[shop password=•••] Dead runs: fires"
    assert told.body["sentence"] == "3 runs died in the last 1 h: postgres://•••@db 3."
    assert told.body["link"] == "https://•••@jobs.example.org/runs?status=dead"


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        ("dead_runs", "/runs?status=dead&failed-since=2026-11-21T11:00:00Z"),
        ("failures_rise", "/errors?since=2026-11-21T11:00:00Z"),
        ("stuck_leases", "/leases"),
    ],
)
def test_the_link_of_what_happened_in_a_time_shows_that_time_whenever_it_is_opened(
    kind: str, link: str
) -> None:
    found = replace(FOUND, within_seconds=3600.0)
    place = Origin("42", None, "https://jobs.example.org")
    told = write_message(kind, kind, "firing", found, RuleState(), place, NOON).body["link"]
    assert told == f"https://jobs.example.org{link}"
    rested = write_message(kind, kind, "recovered", replace(found, firing=False), RuleState(), place, NOON)
    assert "since" not in urlsplit(rested.body["link"]).query


def test_ordinary_names_and_numbers_are_told_as_they_are() -> None:
    sentence = "5 runs died in the last 1 h: token_refresh 3, send_password 2. Look at them."
    found = replace(FOUND, sentence=sentence, names=("token_refresh", "send_password"))
    told = write_message(
        "dead_runs", "dead_runs", "firing", found, RuleState(), Origin("42", "x" * 300), NOON
    )
    assert told.body["sentence"] == sentence and told.body["names"] == ["token_refresh", "send_password"]
    assert sentence in told.body["text"] and len(told.subject) <= SUBJECT_CHARACTERS
