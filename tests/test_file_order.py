"""The order in which the check begins its files."""

from __future__ import annotations

from pathlib import Path

from tests.support import file_order
from tests.support.processes import ROOT


def files(*names: str) -> list[Path]:
    return [ROOT / "tests" / name for name in names]


def test_each_of_the_longest_files_is_there() -> None:
    assert [name for name in file_order.LONGEST if not (ROOT / "tests" / name).is_file()] == []


def test_each_kind_is_spread_over_the_whole_run() -> None:
    browsers, computing = (f"browser/test_{n}.py" for n in "ab"), (f"worker/test_{n}.py" for n in "cdef")
    begun = file_order.of(files(*browsers, "faults/test_g.py", *computing))
    assert begun == files(
        "browser/test_a.py",
        "faults/test_g.py",
        "worker/test_c.py",
        "worker/test_d.py",
        "browser/test_b.py",
        "worker/test_e.py",
        "worker/test_f.py",
    )


def test_the_longest_of_a_kind_comes_first() -> None:
    long, longer = file_order.LONGEST[1], file_order.LONGEST[0]
    assert file_order.of(files("browser/test_a.py", long, longer)) == files(longer, long, "browser/test_a.py")
