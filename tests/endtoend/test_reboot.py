"""A reboot without a warning: every process of a household dies at once, the embedded database's too."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.factories import attempts
from tests.processes import Wakeboard, wait_until, wakeboard
from tests.worker.motion import SHORT, insert_many, wait_until_status
from worker import db, embedded


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data folder with a short path, stopped and removed afterwards."""
    made = Path(tempfile.mkdtemp(prefix="wb-", dir="/var/tmp"))
    made.chmod(0o711)
    yield made
    embedded.stop(made, only_if_unused=False)
    shutil.rmtree(made)


def everything(up: Wakeboard, data_dir: Path) -> list[psutil.Process]:
    """Return the processes of the household and of its database server."""
    found = [psutil.Process(up.pid), *up.family()]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(data_dir / "postgres" / "data") in process.cmdline():
                found += [process, *process.children(recursive=True)]
    return found


def test_after_a_reboot_work_goes_on_where_it_was(data_dir: Path) -> None:
    given = SHORT | {"WAKEBOARD_DATA_DIR": str(data_dir)}
    with wakeboard("up", "--port", "0", environment=given) as before:
        before.wait_for("Wakeboard is at", 90)
        with db.connect(embedded.url(data_dir), name="wakeboard test") as connection:
            cut = insert_many(connection, "patient", 2, {"seconds": 2})
            waiting = insert_many(connection, "quick", 40)
            for run_id in cut:
                wait_until_status(connection, run_id, "running", seconds=30)
            doomed = everything(before, data_dir)
            for process in doomed:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(doomed, timeout=10)
            with pytest.raises(psycopg.Error):
                connection.execute("SELECT 1")
    assert not embedded.is_running(data_dir)

    with wakeboard("up", "--port", "0", environment=given) as after:
        after.wait_for("Wakeboard is at", 90)
        with db.connect(embedded.url(data_dir), name="wakeboard test") as connection:
            unended = "SELECT count(*) FROM wakeboard.job_runs WHERE status <> 'succeeded'"
            wait_until(lambda: connection.execute(unended).fetchone() == (0,), 90, "all runs have ended")
            assert {attempt["outcome"] for attempt in attempts(connection, cut[0])} == {"lost", "succeeded"}
            kept = "SELECT count(*) FROM wakeboard.job_runs WHERE id = ANY(%s)"
            assert connection.execute(kept, (cut + waiting,)).fetchone() == (42,)
        assert after.terminate(60) == 0
