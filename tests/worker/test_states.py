"""The one table of states, moves, verbs and roles agrees with itself."""

from __future__ import annotations

import pytest

from wakeboard.core import states
from wakeboard.core.states import MOVES, STATES, VERBS, Role, Status


def test_every_status_is_explained_once() -> None:
    assert [state.status for state in STATES] == list(Status)
    assert all(state.meaning for state in STATES)


def test_every_status_is_reached_and_left_by_some_move_or_has_ended() -> None:
    reached = {target for move in MOVES.values() for target in move.targets}
    assert reached == set(Status)
    for status in Status:
        assert any(status in move.sources for move in MOVES.values())


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.status)
def test_what_a_state_says_it_leaves_by_are_its_moves(state: states.State) -> None:
    leaving = {
        name
        for name, move in MOVES.items()
        if state.status in move.sources and any(target != state.status for target in move.targets)
    }
    for name in leaving - {"run_again", "release_lease", "retry_now"}:
        assert name in state.leaves_by, f"{state.status} does not say that it leaves by {name}"


def test_what_waits_and_what_has_ended_do_not_overlap() -> None:
    assert not set(states.CLAIMABLE) & set(states.ENDED)
    assert set(states.CLAIMABLE) | set(states.ENDED) | {Status.RUNNING} == set(Status)
    assert set(MOVES["claim"].sources) == set(states.CLAIMABLE)
    assert set(MOVES["run_again"].sources) == set(states.ENDED)


def test_a_later_role_may_do_all_that_an_earlier_one_may() -> None:
    assert Role.ADMIN.covers(Role.OPERATOR) and Role.OPERATOR.covers(Role.VIEWER)
    assert not Role.VIEWER.covers(Role.OPERATOR) and not Role.OPERATOR.covers(Role.ADMIN)
    assert all(role.covers(role) for role in Role)


def test_no_verb_is_for_those_who_may_only_look() -> None:
    assert all(not Role.VIEWER.covers(verb.role) for verb in VERBS.values())


def test_every_verb_moves_by_a_known_move_and_has_words_for_its_button() -> None:
    for action, verb in VERBS.items():
        assert action == verb.action
        assert verb.label[0].isupper()
        assert verb.move is None or MOVES[verb.move].by == "operator"


def test_the_words_for_sql_are_quoted() -> None:
    assert states.sql_list(states.CLAIMABLE) == "'queued', 'failed'"


def test_each_role_is_said_with_its_article() -> None:
    assert [role.with_article for role in Role] == ["a viewer", "an operator", "an admin"]
