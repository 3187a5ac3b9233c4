"""A filter of several states stays what it is when another field of its form is changed."""

from __future__ import annotations

import re

import pytest
from flask.testing import FlaskClient

SELECT = re.compile(r'<select name="state".*?</select>', re.DOTALL)
OPTION = re.compile(r"<option([^>]*)>(.*?)</option>")


def options(client: FlaskClient, address: str) -> tuple[list[str], int]:
    """Return which options of the states are chosen, and how many there are."""
    (select,) = SELECT.findall(client.get(address).text)
    found = OPTION.findall(select)
    return [words for attributes, words in found if " selected" in attributes], len(found)


@pytest.mark.parametrize(
    ("path", "states"),
    [
        ("/schedules", "late,overlapping,twice"), ("/leases", "ended,silent"),
        ("/types", "paused,limited"), ("/workers", "draining,stopping"),
    ],
)  # fmt: skip
def test_the_form_has_them_chosen_together(client: FlaskClient, path: str, states: str) -> None:
    (none, count), (one, same) = (
        options(client, path),
        options(client, f"{path}?state={states.split(',')[0]}"),
    )
    assert (len(none), len(one), same) == (0, 1, count)
    assert options(client, f"{path}?state={states}") == ([states], count + 1)
