"""The log: one line per move, whatever is in it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from wakeboard.config import log


@pytest.fixture(autouse=True)
def _nothing_is_kept_back(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """What others logged before is none of these tests' business, nor is what these set that of others."""
    printed_by(capsys)
    yield
    log.configure("text")


def printed_by(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the lines logged so far; those of ordinary moves are kept back for a moment."""
    log.flush()
    return capsys.readouterr().err


HOSTILE = "a\r\n2026 login ok\x1b[31m\u202eevil\u2028x"


def test_a_move_is_one_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("text")
    log.move("claim", run_id=48210, job_type="send_invoice", attempt=1, worker_id="host-1", error_code=None)
    line = printed_by(capsys)
    assert line[8:] == " claim run=48210 type=send_invoice attempt=1 worker=host-1\n"


def test_durations_carry_their_unit(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("text")
    log.move("fail", duration_seconds=1.23456, next_delay_seconds=3600.0)
    assert printed_by(capsys).endswith("fail took=1.23s next=3600s\n")


@pytest.mark.parametrize("format", ["text", "json"])
def test_hostile_text_stays_on_its_line_and_cannot_colour_it(
    format: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest keeps records to show them, and its processes cannot tell each other a lone surrogate.
    own = [handler for handler in log.logger.handlers if isinstance(handler, log.LineHandler)]
    monkeypatch.setattr(log.logger, "handlers", own)
    log.configure(format)
    log.move("fail", job_type=HOSTILE, error_code=HOSTILE)
    log.note(HOSTILE)
    log.warn("lone surrogate \ud800")
    printed = printed_by(capsys)
    assert printed.count("\n") == len(printed.splitlines()) == 3
    assert "\x1b" not in printed
    assert "\u202e" not in printed


def test_a_move_is_one_json_object_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("json")
    log.move("succeed", run_id=7, job_type=HOSTILE, duration_seconds=0.25)
    line = json.loads(printed_by(capsys))
    assert line["event"] == "succeed"
    assert line["level"] == "info"
    assert (line["run_id"], line["job_type"], line["duration_seconds"]) == (7, HOSTILE, 0.25)
    assert line["at"].endswith("+00:00")


@pytest.mark.parametrize("seconds", [None, 0.000123456, 1234.5])
@pytest.mark.parametrize("job_type", ["mail", "two words", HOSTILE, "x" * 200])
@pytest.mark.parametrize("format", ["text", "json"])
def test_what_every_run_logs_reads_as_any_other_move(
    format: str, job_type: str, seconds: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure(format)
    log.move(
        "claim", run_id=7, job_type=job_type, attempt=2, worker_id="host 1", duration_seconds=seconds
    )  # fmt: skip
    log.run_moves("claim", "host 1", [(7, job_type, 2, seconds)])
    one, other = (line[line.index("claim") :] for line in printed_by(capsys).splitlines())
    assert one == other


def test_lines_of_runs_are_written_in_the_order_of_all_lines(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("text")
    log.run_moves("claim", "w", [(1, "mail", 1, None), (2, "mail", 1, None)])
    log.move("fail", run_id=1)
    log.run_moves("succeed", "w", [(2, "mail", 1, 0.1)])
    log.note("Stopping.")
    words = [line.split()[1] for line in capsys.readouterr().err.splitlines()]
    assert words == ["claim", "claim", "fail", "succeed", "Stopping."]


MOVES = {
    "all": [f"{event} {job_type}" for job_type in ("mail", "shop") for event in ("claim", "succeed")],
    "failures": [],
    "mail=failures": ["claim shop", "succeed shop"],
    "failures, mail=all": ["claim mail", "succeed mail"],
}


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("moves", MOVES)
def test_good_moves_are_logged_by_type_and_what_goes_wrong_always(
    format: str, moves: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure(format, moves=moves)
    for run_id, job_type in ((1, "mail"), (2, "shop")):
        fields = {"run_id": run_id, "job_type": job_type}
        log.run_moves("claim", "w", [(run_id, job_type, 1, None)])
        log.run_moves("succeed", "w", [(run_id, job_type, 1, 0.1)])
        log.move("fail", **fields, error_code="boom")
        log.move("dead", **fields, error_code="boom")
        log.move("succeed", **fields, error_code=None, reason="its result was no JSON")
    log.move("reap", run_id=3, job_type="mail")
    printed = printed_by(capsys)
    said = [_move(line) if format == "text" else _object(line) for line in printed.splitlines()]
    bad = [f"{event} {of}" for of in ("mail", "shop") for event in ("fail", "dead", "succeed")]
    assert sorted(said) == sorted([*MOVES[moves], *bad, "reap mail"])


def _move(line: str) -> str:
    words = line.split()
    return f"{words[1]} {words[3].removeprefix('type=')}"


def _object(line: str) -> str:
    found = json.loads(line)
    return f"{found['event']} {found['job_type']}"


@pytest.mark.parametrize("step", [1, 2, 100])
def test_one_run_in_a_hundred_is_logged_from_its_claim_to_its_end(
    step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure("text", moves="1/100,shop=1/10")
    runs = range(1, 20_000 * step, step)
    log.run_moves("claim", "w", [(run_id, "mail", 1, None) for run_id in runs])
    for run_id in runs:
        log.move("succeed", run_id=run_id, job_type="mail", attempt=1)
    lines = [line.split() for line in printed_by(capsys).splitlines()]
    claimed, succeeded = ([line[2] for line in lines if line[1] == event] for event in ("claim", "succeed"))
    assert claimed == succeeded and 150 < len(claimed) < 250


def test_a_level_leaves_out_what_is_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    for level, expected in (("info", 5), ("warning", 2), ("error", 1)):
        log.configure("text", level=level)
        log.run_moves("claim", "w", [(1, "mail", 1, None)])
        log.move("fail", run_id=1, job_type="mail")
        log.note("Stopping.")
        log.warn("Odd.")
        log.error("Wrong.", "")
        assert len(printed_by(capsys).splitlines()) == expected


def test_a_value_with_spaces_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("text")
    log.warn("Odd.", why='two words and a "quote"', empty="")
    assert printed_by(capsys).endswith('WARNING Odd. why="two words and a \\"quote\\"" empty=""\n')


def test_configuring_twice_prints_once(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("text")
    log.configure("text")
    log.note("Hello.")
    assert printed_by(capsys).count("Hello.") == 1


def test_a_line_held_back_goes_in_front_of_the_next_or_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("text")
    log.note("before")
    log.defer("started")
    assert printed_by(capsys).count("\n") == 1
    log.run_moves("claim", "w1", [(1, "mail", 1, None)])
    assert [line.split()[1] for line in printed_by(capsys).splitlines()] == ["started", "claim"]
    assert not log.drop_deferred()
    log.defer("started")
    assert log.drop_deferred()
    log.note("after")
    assert [line.split()[1] for line in printed_by(capsys).splitlines()] == ["after"]


def test_trouble_is_one_line_for_machines_and_shows_people_its_trace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.configure("json")
    log.error("It cannot be.", 'File "a.py"\n  x = (\n')
    log.error("It is not there.", "")
    first, second = map(json.loads, printed_by(capsys).splitlines())
    assert (first["level"], first["event"], first["exception"]) == (
        "error", "It cannot be.", 'File "a.py"\n  x = (',
    )  # fmt: skip
    assert "exception" not in second
    log.configure("text")
    log.error("It cannot be.", 'File "a.py"\n  x = (\n')
    log.error("It is not there.", "")
    assert printed_by(capsys) == 'It cannot be.\nFile "a.py"\n  x = (\nIt is not there.\n'


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_secret_in_what_a_handler_said_reaches_no_log(
    format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure(format)
    said = "boom for postgres://app:hunter2@db/x, password=hunter2"
    log.move("fail", run_id=7, error_code="boom", reason=said)
    log.warn("The database refused a claim.", error=said)
    log.error(said, f"Traceback\n  {said}")
    try:
        raise ValueError(said)
    except ValueError:
        logging.getLogger("wakeboard.web").warning("failed: %s", said, exc_info=True)
    printed = printed_by(capsys)
    assert "hunter2" not in printed and printed.count("boom for") >= 5


def test_a_log_without_a_failure_needs_no_patterns_of_secrets() -> None:
    lines = (
        "import sys; from wakeboard.config import log; log.configure('json');"
        "log.run_moves('succeed', 'w', [(1, 'mail', 1, 0.1)]); log.move('reap', run_id=1, reason=None);"
        "log.note('Worker stopped.'); print('wakeboard.core.text.redaction' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == "False", said.stderr
