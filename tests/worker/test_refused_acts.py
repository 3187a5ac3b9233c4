"""A rule of the database's owner forbids what an operator asks for: the answer says the rule's sentence."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support.factories import Connection, a_run, row, rows
from tests.support.postgres.write_refusals import refuse, refuse_at_commit
from tests.support.workers.worker_processes import OPERATOR
from wakeboard import queue as transitions
from wakeboard.config import log
from wakeboard.database.audit import audited_transaction


@pytest.mark.parametrize("rule", [refuse, refuse_at_commit])
@pytest.mark.parametrize("move", [transitions.retry_now, transitions.cancel])
def test_what_a_rule_forbids_is_answered_in_its_sentence_and_audited(
    connection: Connection, rule: Any, move: Any
) -> None:
    run_id = a_run(connection, "failed")
    before = row(connection, run_id)
    rule(connection, "true", "it stays as it is")
    answer = move(connection, run_id, OPERATOR)
    assert (answer.result, answer.is_refused) == ("forbidden", True)
    assert answer.message == (
        f"The database refuses this for run {run_id}: it stays as it is. Nothing was changed."
    )
    assert row(connection, run_id) == before
    (audited,) = rows(connection, "audit_log", "target_id = %s", str(run_id))
    assert audited["result"] == "forbidden"


@pytest.mark.parametrize("code", ["assert_failure", "with_check_option_violation", "UE001"])
def test_a_rule_may_raise_under_a_code_of_its_own(connection: Connection, code: str) -> None:
    run_id = a_run(connection, "failed")
    refuse(connection, "true", f"no' USING ERRCODE = '{code}")
    assert transitions.cancel(connection, run_id, OPERATOR).is_refused


def test_what_says_nothing_of_the_run_is_no_answer(connection: Connection) -> None:
    run_id = a_run(connection, "failed")
    refuse(connection, "true", "no' USING ERRCODE = 'query_canceled")
    with pytest.raises(psycopg.errors.QueryCanceled):
        transitions.cancel(connection, run_id, OPERATOR)


@pytest.mark.parametrize("rule", [refuse, refuse_at_commit])
def test_the_log_tells_of_no_act_that_was_rolled_back(
    connection: Connection, capfd: pytest.CaptureFixture[str], rule: Any
) -> None:
    log.configure()
    run_id, other = (a_run(connection, "failed") for _ in range(2))
    rule(connection, "true", "it stays as it is")
    transitions.cancel(connection, run_id, OPERATOR)
    with pytest.raises(ZeroDivisionError), audited_transaction(connection):
        transitions.cancel(connection, other, OPERATOR)
        raise ZeroDivisionError
    log.flush()
    told = [line for line in capfd.readouterr().err.splitlines() if "run.cancel" in line]
    assert len(told) == 1
    assert f"target=run:{run_id} result=forbidden" in told[0]
