"""The product from outside: `wakeboard up` with our handlers, its tables, and visitors of its pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.http_client import Visitor, sign_in
from tests.support.installation import Household, running_household
from tests.support.processes import run_wakeboard


@pytest.fixture(scope="module")
def household(shared_database: str) -> Iterator[Household]:
    """Worker and dashboard on ``shared_database``, for all tests of a module."""
    with running_household(shared_database) as running:
        yield running


@pytest.fixture(scope="module")
def admin(household: Household) -> Visitor:
    """Who used the link of the terminal."""
    return sign_in(household.link)


@pytest.fixture(scope="module")
def command(shared_database: str) -> Callable[..., Any]:
    """Run a ``wakeboard`` command on ``shared_database`` that must succeed; return its JSON answer."""

    def run(*words: str) -> Any:
        said = run_wakeboard(*words, "--json", database=shared_database)
        assert said.returncode == 0, said.stderr
        return json.loads(said.stdout)

    return run
