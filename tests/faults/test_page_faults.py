"""Faults under the pages alone: nothing works, somebody looks. Group E."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.support.faults.deployment import House
from tests.support.faults.fault_rows import Scale, fault
from tests.support.faults.page_users import ADMIN
from tests.support.postgres.cluster import Cluster, cluster, database
from tests.support.processes import Wakeboard, wait_until
from wakeboard.accounts.tokens import create_token
from wakeboard.config.settings import Settings
from wakeboard.core.states import Role

__all__ = ["cluster", "database"]
Measured = Callable[[str], None]
PAGES = ("/", "/runs", "/schedules", "/audit", "/types", "/night", "/system", "/runs.json")
# The longest that a page may take to say that the database is away.
BOUND_SECONDS = 10.0
PROCESSES = Settings().web_processes
PROBE_SECONDS = 3.0
# More than the dashboard has threads, so that some wait for one.
AT_ONCE = 24


class Reader:
    """Asks pages of the dashboard at ``address`` by a viewer's token."""

    def __init__(self, house: House, address: str) -> None:
        self._address = address
        self._token = create_token(house.connection, ADMIN, "viewer", Role.VIEWER)

    def __call__(self, path: str) -> tuple[int, str, float]:
        """Return the status, the text and the seconds of one answer."""
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "text/html"}
        asked = urllib.request.Request(self._address + path, headers=headers)
        began = time.monotonic()
        try:
            with urllib.request.urlopen(asked, timeout=120) as answer:
                found = answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            found = refused.code, refused.read().decode()
        return *found, time.monotonic() - began

    def all_at_once(self, count: int) -> list[tuple[int, str, float]]:
        """Ask for ``count`` pages at the same time."""
        paths: Sequence[str] = [PAGES[place % len(PAGES)] for place in range(count)]
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(self, paths))


@fault(
    "F90",
    injected="every process of PostgreSQL frozen (SIGSTOP) under open connections of the dashboard",
    expected="pages say within 10 s that the database does not answer; threads are free; all is well after",
)
def test_a_frozen_database_holds_no_page(
    house: House, cluster: Cluster, scale: Scale, measured: Measured
) -> None:
    reader = Reader(house, house.web())
    assert {code for code, _, _ in reader.all_at_once(AT_ONCE)} == {200}
    cluster.freeze()
    try:
        longest = 0.0
        for _ in range(scale.times(1, 2)):
            # At most as many as there are threads wait for the database; the others wait for those.
            answers = reader.all_at_once(scale.times(8, AT_ONCE // 2))
            assert {code for code, _, _ in answers} == {503}
            assert all("The database does not answer" in text for _, text, _ in answers)
            longest = max(longest, *(seconds for _, _, seconds in answers))
            probe, _, probe_seconds = reader("/healthz")
            assert probe == 200
            assert probe_seconds < PROBE_SECONDS, f"a probe took {probe_seconds:.1f} s"
    finally:
        cluster.thaw()
    assert longest <= BOUND_SECONDS, f"a page took {longest:.1f} s"
    began = time.monotonic()
    wait_until(lambda: {code for code, _, _ in reader.all_at_once(AT_ONCE)} == {200}, 10, "pages are back")
    measured(f"503 after {longest:.1f} s at most; all pages back {time.monotonic() - began:.1f} s after")
    house.check()


def processes_of(dashboard: Wakeboard, but: Collection[int] = ()) -> set[int]:
    """Return the processes below a dashboard, once they are as many as it begins with and none of ``but``."""

    def found() -> set[int]:
        pids = {each.pid for each in dashboard.family()}
        return pids if len(pids) == PROCESSES and not pids & set(but) else set()

    return wait_until(found, 10, f"the dashboard has {PROCESSES} processes below it, and others")


@fault(
    "F91",
    injected="SIGUSR1, USR2, TTIN, TTOU, WINCH and HUP, which gunicorn knows, sent to the dashboard",
    expected="no second dashboard, no other number of processes; pages answer; SIGTERM ends it with 0",
)
def test_no_signal_makes_a_second_dashboard(house: House, scale: Scale, measured: Measured) -> None:
    reader = Reader(house, house.web())
    (dashboard,) = house.processes
    before = processes_of(dashboard)
    signals = ("USR1", "USR2", "TTIN", "TTOU", "WINCH", "HUP") * scale.times(1, 3)
    for name in signals:
        os.kill(dashboard.pid, getattr(signal, f"SIG{name}"))
        assert {code for code, _, _ in reader.all_at_once(AT_ONCE)} == {200}, name
        if name == "HUP":
            before = processes_of(dashboard, but=before)
        assert {each.pid for each in dashboard.family()} == before, name
    said = dashboard.output
    assert all(f"SIG{name} is not taken" in said for name in ("USR2", "TTIN", "TTOU")), said
    measured(f"{len(signals)} signals, {len(before)} processes after each")
    house.check()
