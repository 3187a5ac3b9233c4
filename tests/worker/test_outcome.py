"""What a return or an exception becomes; hostile exceptions become clean answers all the same."""

from __future__ import annotations

import asyncio
import json
import urllib.error
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.message import Message
from functools import partial
from typing import Any

import click
import psycopg.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeboard import Context
from wakeboard.core.errors.error_groups import group_of
from wakeboard.core.outcome import (
    KINDS,
    PLAIN,
    AttemptResult,
    Cancelled,
    DeadlineExceeded,
    Kind,
    Permanent,
    Retryable,
    result_of_exception,
    result_of_return,
)
from wakeboard.core.retry import delay_seconds
from wakeboard.core.text.sanitize import clean_text
from wakeboard.handlers.invoke import invoke
from wakeboard.handlers.registry import JobType
from wakeboard.runtime.processes.protocol import Answer, answer_frame, read_answer


def raised(action: Callable[[], object]) -> BaseException:
    """The exception `action` raises, with its traceback."""
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def fail(error: BaseException, cause: BaseException | None = None) -> Callable[[], object]:
    """A call that raises `error`."""

    def action() -> None:
        if cause is not None:
            raise error from cause
        raise error

    return action


@pytest.mark.parametrize(
    ("value", "text"), [({"a": [1, "ä"]}, '{"a":[1,"ä"]}'), (0, "0"), ("", '""'), ("\\u0000", '"\\\\u0000"')]
)
def test_a_json_value_is_kept_as_text(value: object, text: str) -> None:
    assert result_of_return(value) == AttemptResult("returned", result=text)


def test_nothing_returned_is_nothing_kept() -> None:
    assert result_of_return(None) == AttemptResult("returned")


class _NoJson(dict[str, int]):
    def items(self) -> Any:
        raise SystemExit("no")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {2j},
        float("nan"),
        "x" * 9000,
        "\ud800",
        "nul \x00",
        [10**5000],
        b"bytes",
        _NoJson(a=1),
    ],
)
def test_a_result_that_cannot_be_kept_is_noted_and_still_a_success(value: object) -> None:
    answer = result_of_return(value)
    assert (answer.kind, answer.result) == ("returned", None)
    assert (answer.note or "").startswith("The result was not kept: ")


def test_a_result_that_holds_itself_is_noted() -> None:
    value: list[object] = []
    value.append(value)
    assert "Circular" in (result_of_return(value).note or "")


class _WithCode(Exception):
    error_code: Any = "own_code"


class _WithStatus(Exception):
    status_code = 503


class _Response:
    status_code = 429


class _WithResponse(Exception):
    response = _Response()


class _Wrapped(Exception):
    orig = psycopg.errors.UniqueViolation()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (_WithCode(), "own_code"),
        (psycopg.errors.UniqueViolation("duplicate"), "23505"),
        (_Wrapped(), "23505"),
        (_WithStatus(), "http_503"),
        (_WithResponse(), "http_429"),
        (urllib.error.HTTPError("http://x", 404, "gone", Message(), None), "http_404"),
        (SystemExit(200), "exit_200"),
        (SystemExit(256), "exit_255"),
        (SystemExit("no such file"), "exit_1"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (click.exceptions.Exit(3), "exit_3"),
        (click.exceptions.Abort(), "Abort"),
        (OSError(13, "no"), "PermissionError"),
        (Permanent("gone", "It is gone."), "gone"),
        (Cancelled("stop"), "cancelled"),
        (DeadlineExceeded("late"), "timed_out"),
    ],
)
def test_the_error_code_is_the_most_telling_there_is(error: BaseException, code: str) -> None:
    assert result_of_exception(error).error_code == code


def test_permanent_types_are_permanent_and_retryable_is_not() -> None:
    assert result_of_exception(Permanent("a", "b")).permanent
    assert result_of_exception(KeyError("x"), (LookupError,)).permanent
    assert not result_of_exception(ValueError("x"), (LookupError,)).permanent
    assert not result_of_exception(Retryable("x", after=5), (Retryable,)).permanent
    assert result_of_exception(Retryable("x", after=5)).retry_after_seconds == 5.0


@pytest.mark.parametrize(
    ("after", "seconds"), [(timedelta(minutes=5), 300.0), ("1h30m", 5400.0), ("90", 90.0)]
)
def test_a_retry_time_is_given_as_durations_are_elsewhere(after: Any, seconds: float) -> None:
    assert result_of_exception(Retryable("x", after=after)).retry_after_seconds == seconds


@pytest.mark.parametrize(
    ("after", "failures", "soonest", "latest"),
    [
        (0, 1, 8, 12),
        (0, 4, 64, 96),
        (60, 1, 60, 72),
        (60, 5, 128, 192),
        (86_400, 1, 86_400, 86_700),
        (None, 2, 16, 24),
    ],
)
def test_what_a_handler_asks_for_is_the_soonest_and_the_backoff_holds_all_the_same(
    after: float | None, failures: int, soonest: float, latest: float
) -> None:
    answer = result_of_exception(Retryable("busy", after=after))
    drawn = [delay_seconds(answer, "exponential 10s cap 30m", failures) for _ in range(200)]
    assert soonest <= min(drawn) and max(drawn) <= latest
    assert max(drawn) - min(drawn) > (latest - soonest) / 2, "runs that were told the same come back apart"


def test_a_fixed_rule_waits_exactly_what_was_asked_for_and_never_less_than_itself() -> None:
    answers = [result_of_exception(Retryable("busy", after=after)) for after in (0, 7, 90)]
    assert [delay_seconds(answer, "fixed 7s", 3) for answer in answers] == [7, 7, 90]


@pytest.mark.parametrize("after", ["soon", "", [300], True, b"5m"])
def test_what_is_no_retry_time_is_refused_and_not_a_retry_too_early(after: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="duration"):
        Retryable("x", after=after)


@pytest.mark.parametrize("after", [float("nan"), -1, 10**400, float("inf"), timedelta(days=5000)])
def test_a_retry_time_that_cannot_be_is_left_to_the_backoff(after: Any) -> None:
    assert result_of_exception(Retryable("x", after=after)).retry_after_seconds is None


def test_the_traceback_names_the_line_and_the_cause() -> None:
    answer = result_of_exception(raised(fail(ValueError("outer"), KeyError("inner"))))
    text = answer.traceback or ""
    assert text.index("KeyError: 'inner'") < text.index("direct cause") < text.index("ValueError: outer")
    assert "raise error from cause" in text


def test_what_fails_again_in_the_same_place_tells_the_same_lines_and_its_own_message() -> None:
    def refuse(order: int) -> None:
        raise ValueError(f"order {order}")

    def at_once(order: int) -> None:
        refuse(order)

    def later(order: int) -> None:
        refuse(order)

    def told(way: Callable[[int], None], order: int) -> tuple[str, str]:
        lines, _, message = (result_of_exception(raised(lambda: way(order))).traceback or "").rpartition("\n")
        return lines, message

    first = told(at_once, 1)
    assert told(at_once, 2) == (first[0], "ValueError: order 2")
    other = told(later, 3)
    assert "in later" not in first[0] and "in later" in other[0] and other[1] == "ValueError: order 3"


def test_the_same_code_in_another_file_fails_in_that_file() -> None:
    for number in range(150):
        code = compile("raise ValueError", f"/srv/release-{number}/jobs.py", "exec")
        for _ in range(2):
            text = result_of_exception(raised(partial(exec, code))).traceback or ""
            assert f'File "/srv/release-{number}/jobs.py", line 1' in text


@pytest.mark.parametrize(
    "leave",
    [
        SystemExit(), SystemExit(0), SystemExit(False), click.exceptions.Exit(0),
        BaseExceptionGroup("both", [SystemExit(0), SystemExit(None)]),
    ],
)  # fmt: skip
def test_an_exit_with_status_0_is_a_success(leave: BaseException) -> None:
    assert result_of_exception(leave, (SystemExit,)) == AttemptResult("returned")


def test_a_command_that_ends_well_is_a_success_and_one_that_does_not_says_its_status() -> None:
    @click.command()
    @click.option("--number", type=int)
    def command(number: int) -> None:
        if number:
            raise click.ClickException("that went wrong")

    answers = [
        result_of_exception(raised(lambda words=words: command(words)))  # type: ignore[misc]
        for words in ([], ["--number", "1"], ["--number", "x"], ["--help"])
    ]
    assert [(one.kind, one.error_code, one.message) for one in answers] == [
        ("returned", None, None),
        ("raised", "exit_1", "exit status 1"),
        ("raised", "exit_2", "exit status 2"),
        ("returned", None, None),
    ]


@pytest.mark.parametrize(
    ("leave", "code", "message"),
    [
        (SystemExit(3), "exit_3", "exit status 3"),
        (SystemExit(-1), "exit_255", "exit status 255"),
        (SystemExit("no input\n"), "exit_1", "no input\n"),
        (SystemExit(["a", 1]), "exit_1", "['a', 1]"),
        (BaseExceptionGroup("both", [SystemExit(0), SystemExit(4)]), "exit_4", "exit status 4"),
    ],
)
def test_another_exit_is_a_failure_with_its_status_or_its_words(
    leave: BaseException, code: str, message: str
) -> None:
    answer = result_of_exception(leave)
    assert (answer.kind, answer.error_code, answer.message) == ("raised", code, message)
    assert not answer.permanent
    assert result_of_exception(leave, (SystemExit,)).permanent


async def _part(error: BaseException) -> None:
    raise error


async def _all_of(*errors: BaseException) -> None:
    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(_part(error))


def in_a_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run it in a thread of its own: tests with a browser leave a loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


def answer_of_group(*errors: BaseException, permanent: tuple[type[BaseException], ...] = ()) -> AttemptResult:
    """The answer for a handler whose TaskGroup failed with `errors`."""
    return result_of_exception(raised(lambda: in_a_loop(_all_of(*errors))), permanent)


def test_a_task_group_fails_as_its_only_exception_does() -> None:
    answer = answer_of_group(_WithCode("no such address"))
    assert (answer.error_code, answer.message) == ("own_code", "no such address")
    text = answer.traceback or ""
    assert text.index("in _all_of") < text.index("ExceptionGroup: ") < text.index("in _part")
    assert text.endswith("_WithCode: no such address")


def test_of_several_the_first_speaks_and_the_others_are_counted() -> None:
    inner = ExceptionGroup("inner", [KeyError("first"), ExceptionGroup("deeper", [OSError("second")])])
    answer = result_of_exception(raised(fail(ExceptionGroup("outer", [inner, ValueError("third")]))))
    assert (answer.error_code, answer.message) == ("KeyError", "'first' (and 2 more)")
    assert "  + OSError: second\n  + ValueError: third\n" in (answer.traceback or "")
    assert (answer.traceback or "").endswith("KeyError: 'first'")


def test_the_error_group_of_a_task_group_is_its_first_exceptions() -> None:
    def group(answer: AttemptResult) -> int:
        return group_of("t", answer.error_code or "", answer.message, answer.traceback).id

    alone = result_of_exception(raised(lambda: in_a_loop(_part(ValueError("bad")))))
    assert group(answer_of_group(ValueError("bad"))) == group(alone)
    assert group(answer_of_group(ValueError("bad"), KeyError(1))) == group(alone)
    assert group(answer_of_group(KeyError(1), ValueError("bad"))) != group(alone)


def test_a_group_is_permanent_when_nothing_in_it_can_heal() -> None:
    declined, busy = Permanent("declined", "no"), Retryable("busy", after=90)
    assert answer_of_group(declined).permanent
    assert answer_of_group(declined, KeyError(1), permanent=(KeyError,)).permanent
    mixed = answer_of_group(declined, Retryable("slow", after=5), busy)
    assert (mixed.permanent, mixed.retry_after_seconds, mixed.error_code) == (False, 90.0, "declined")
    assert answer_of_group(KeyError(1), permanent=(ExceptionGroup,)).permanent


def test_a_group_with_a_code_of_its_own_speaks_for_itself() -> None:
    class Several(ExceptionGroup[Exception]):
        error_code = "several"

    answer = result_of_exception(Several("three of five failed", [ValueError("x")]))
    assert (answer.error_code, answer.message) == ("several", "three of five failed (1 sub-exception)")


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([Cancelled("stop")], "cancelled"),
        ([ValueError("x"), DeadlineExceeded("late")], "timed_out"),
        ([DeadlineExceeded("late"), Cancelled("stop")], "cancelled"),
    ],
)
def test_a_stop_within_a_group_is_a_stop(errors: list[BaseException], kind: str) -> None:
    answer = answer_of_group(*errors)
    assert (answer.kind, answer.error_code) == (kind, kind)


class _StrRaises(Exception):
    def __str__(self) -> str:
        raise SystemExit("from __str__")


class _StrIsBytes(Exception):
    def __str__(self) -> str:
        return b"bytes"  # type: ignore[return-value]


class _StrIsHuge(Exception):
    def __str__(self) -> str:
        return "x" * 100_000_000


class _EvilText(str):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, _key: object) -> str:
        raise RuntimeError("no slice")


class _StrIsEvil(Exception):
    def __str__(self) -> str:
        return _EvilText("y" * 5000)


class _AttributesRaise(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RecursionError(name)


class _LyingCause(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise MemoryError


class _HugeCode(Exception):
    error_code = "c" * 10_000 + "\x00"


class _EvilMeta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise KeyboardInterrupt


class _Nameless(Exception, metaclass=_EvilMeta):
    pass


class _OwnBase(BaseException):
    pass


def circle() -> BaseException:
    """Two exceptions that are each other's cause."""
    first, second = raised(fail(ValueError("first"))), raised(fail(KeyError("second")))
    first.__cause__, second.__cause__ = second, first
    return first


def chain(length: int) -> BaseException:
    """An exception with `length` causes behind it."""
    error: BaseException = ValueError(0)
    for number in range(1, length):
        error = raised(fail(ValueError(number), error))
    return error


def deep(left: int = 900) -> None:
    """Raise from 900 calls below."""
    if left == 0:
        raise ValueError("deep")
    deep(left - 1)


def nested() -> BaseException:
    """A group in a group, and so on, a thousand deep."""
    error: Exception = ValueError("at the bottom")
    for _ in range(1000):
        error = ExceptionGroup("around", [error])
    return error


def its_own_cause() -> BaseException:
    """A group that is the cause of what it holds."""
    held = ValueError("held")
    held.__cause__ = group = ExceptionGroup("holds its effect", [held, held])
    return raised(fail(group))


HOSTILE: list[Callable[[], BaseException]] = [
    lambda: raised(fail(_StrRaises())),
    lambda: raised(fail(_StrIsBytes())),
    lambda: raised(fail(_StrIsHuge())),
    lambda: raised(fail(_StrIsEvil())),
    lambda: raised(fail(ValueError("nul \x00, bell \x07, screen \x1b[2J, turned \u202e"))),
    lambda: raised(fail(ValueError("lone \ud800 surrogate"))),
    circle,
    lambda: chain(5000),
    lambda: raised(fail(_OwnBase("base"))),
    lambda: raised(fail(_AttributesRaise())),
    lambda: raised(fail(_LyingCause("lying"))),
    lambda: raised(fail(_HugeCode())),
    lambda: raised(fail(_Nameless("nameless"))),
    lambda: raised(deep),
    lambda: ExceptionGroup("many", [ValueError(number) for number in range(10_000)]),
    lambda: raised(fail(ValueError(lambda: 1, object()))),
    lambda: ExceptionGroup("hostile", [_StrRaises(), _LyingCause("lying")]),
    lambda: ExceptionGroup("hostile", [_AttributesRaise()]),
    nested,
    its_own_cause,
]


@pytest.mark.parametrize("make", HOSTILE)
def test_a_hostile_exception_gives_a_clean_answer(make: Callable[[], BaseException]) -> None:
    answer = result_of_exception(make())
    assert answer.kind == "raised"
    assert answer.error_code and len(answer.error_code) <= 100
    assert answer.message is not None and len(answer.message) <= 2000
    assert answer.traceback and len(answer.traceback.encode()) <= 33_000
    for text in (answer.error_code, answer.message, answer.traceback):
        assert not any(ord(c) < 32 and c not in "\n\t" for c in text)
        assert not any("\ud800" <= c <= "\udfff" or c == "\u202e" for c in text)
    assert read_answer(answer_frame(Answer(1, 1, 1, 2, answer))[4:]).result == answer


def test_a_deep_traceback_keeps_both_ends() -> None:
    text = result_of_exception(raised(deep)).traceback or ""
    assert "in raised" in text
    assert "frames left out" in text
    assert text.endswith("ValueError: deep")


@given(st.text(), st.integers(0, 50), st.sampled_from(["head", "ends", "tail"]))
def test_cleaned_text_is_short_and_storable(text: str, limit: int, keep: Any) -> None:
    cleaned = clean_text(text, limit, keep=keep)
    assert len(cleaned) <= max(limit, 60)
    assert "\x00" not in cleaned
    cleaned.encode("utf-8")


@pytest.mark.parametrize(
    "row",
    [
        "[1,1,1]",
        '[1,1,1,2,"won"]',
        '["1",1,1,2,"returned"]',
        '[1,1,1,2,"raised",{"message":5}]',
        '[1,1,1,2,"raised",{"unknown":"x"}]',
        '[1,1,1,2,["raised"]]',
        "{}",
        "17",
        "",
        "[" * 5000,
        "1" * 5000,
        "\xff",
        "\x00",
        "\x00" * 32,
        "\x00" * 34,
        "\x07" + "\x00" * 32,
    ],
)
def test_bytes_that_are_no_answer_are_refused(row: str) -> None:
    with pytest.raises(ValueError, match="not an answer"):
        read_answer(row.encode("latin-1"))


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_with_nothing_to_tell_travels(kind: Kind) -> None:
    row = (2**62, 5, 6, 2**62, PLAIN[kind])
    assert read_answer(answer_frame(Answer(*row))[4:]) == row


def test_every_field_of_an_answer_travels() -> None:
    answer = AttemptResult(
        "raised", "code", "message ä\n", True, 1.5, "trace", json.dumps({"a": 1}), "tail", "note"
    )
    assert read_answer(answer_frame(Answer(2**62, 5, 6, 7, answer))[4:]) == (2**62, 5, 6, 7, answer)


async def _an_async_generator() -> Any:
    yield 1


@pytest.mark.parametrize("give", [lambda ctx: (one for one in (1,)), lambda ctx: _an_async_generator()])
def test_a_generator_that_comes_back_is_a_failure_for_nothing_of_it_ran(give: Callable[[Any], Any]) -> None:
    answer = invoke(JobType("gives", give), Context())
    assert (answer.kind, answer.error_code) == ("raised", "TypeError")
    assert "nothing of it has run" in (answer.message or "")
