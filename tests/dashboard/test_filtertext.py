"""The filter as a typed line: what it means, and that it comes back as it was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.datastructures import MultiDict

from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.pages.filtertext import read_line, write_line
from wakeboard_dashboard.views.runs import FIELDS
from wakeboard_dashboard.web.params import read_filters

WORD = st.text(st.characters(codec="utf-8", exclude_characters='\0"'), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("line", "query"),
    [
        ("", ""),
        ("status:failed since:24h", "status=failed&since=1d"),
        ("no answer", "q=no%20answer"),
        ('"http://crm" timeout', "q=http:%2F%2Fcrm%20timeout"),
        ('type:"send mail" attempts:3+', "type=send%20mail&attempts=3%2B"),
        ("payload.customer.id:7", "payload.customer.id=7"),
        ("status:dead status:failed", "status=dead,failed"),
        ("key:invoice:812", "key=invoice:812"),
    ],
)
def test_a_line_means_a_query(line: str, query: str) -> None:
    assert read_filters(read_line(line), FIELDS).query == query


@pytest.mark.parametrize("line", ['type:"open', "http://crm", "colour:red", "status:,"])
def test_a_line_that_cannot_be_meant_is_refused(line: str) -> None:
    with pytest.raises(FilterError):
        read_filters(read_line(line), FIELDS)


@given(st.sampled_from(("type", "key", "error", "q")), WORD)
def test_what_filters_write_they_read_back(name: str, value: str) -> None:
    filters = read_filters(MultiDict({name: value}), FIELDS)
    assert read_filters(read_line(write_line(filters)), FIELDS) == filters
