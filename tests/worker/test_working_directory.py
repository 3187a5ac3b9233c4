"""The way back to a child's folder, whatever became of it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from wakeboard.config import working_directory
from wakeboard.config.working_directory import WorkingDirectory


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder that the process is in."""
    before = Path.cwd()
    home = tmp_path / "home"
    home.mkdir()
    os.chdir(home)
    yield home
    os.chdir(before)


def test_it_is_returned_to(home: Path) -> None:
    kept = WorkingDirectory()
    os.chdir("/")
    kept.return_to()
    assert Path.cwd() == home


def test_one_that_may_be_entered_but_not_opened_is_returned_to(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_directory, "_open_current", lambda: -1)
    kept = WorkingDirectory()
    kept.return_to()
    os.chdir("/")
    kept.return_to()
    assert Path.cwd() == home


def test_few_descriptors_are_enough(home: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, hard))
    try:
        kept = WorkingDirectory()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    os.chdir("/")
    kept.return_to()
    assert Path.cwd() == home


def test_once_another_has_its_name_that_one_is_returned_to(home: Path) -> None:
    kept = WorkingDirectory()
    home.rename(home.with_name("old"))
    home.mkdir()
    kept.return_by_name()
    kept.return_to()
    assert Path.cwd() == home
    assert os.path.samestat(home.stat(), Path().stat())


def test_what_a_handler_opened_in_the_place_of_a_closed_one_is_not_touched(home: Path) -> None:
    kept = WorkingDirectory()
    os.close(kept._fd)
    theirs, far_end = os.pipe()
    os.dup2(theirs, kept._fd)
    os.chdir("/")
    kept.return_to()
    assert Path.cwd() == home
    os.write(far_end, b"here")
    assert os.read(theirs, 4) == b"here"
