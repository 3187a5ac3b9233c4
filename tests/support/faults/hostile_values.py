"""Values and exceptions that are hard to keep, for the rows about data. There is no handler among them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NoReturn

# Half of all characters are what makes trouble: NUL, controls, halves of pairs, marks that turn text around.
ODD = '\x00\x07\x1b\r\n\x7f\x85"\\\ud800\udbff\udc80\udfff\u2028\u202e\ufeff\ufffd\uffff\U0010ffff'
NUMBERS = (0, -0.0, 1e16, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"), 2**64, -(10**400))
LARGE = (2_000, 2_731, 100_000, 7 * 2**20)


def nested(levels: int) -> Any:
    """Return a list in a list, ``levels`` deep."""
    inner: Any = 0
    for _ in range(levels):
        inner = [inner]
    return inner


def hostile_value(seed: int) -> Any:
    """Return a value that a handler may answer with, the same for the same seed."""
    chance = random.Random(seed)
    return chance.choice((_text, _text, _number, _digits, _deep, _large, _mixed, _no_json))(chance)


def _text(chance: random.Random) -> str:
    odd = (
        chance.choice(ODD) if chance.random() < 0.5 else chr(chance.randrange(0x110000)) for _ in range(40)
    )
    return "".join(odd)


def _number(chance: random.Random) -> Any:
    return chance.choice(NUMBERS)


def _digits(chance: random.Random) -> int:
    return int(10 ** chance.randrange(10_000))


def _deep(chance: random.Random) -> Any:
    return nested(chance.choice((1, 50, 400, 900, 980, 1_500, 5_000)))


def _large(chance: random.Random) -> str:
    # Twenty megabytes now and then: each copy of them takes the machine a while.
    return "€" * chance.choice(LARGE if chance.random() < 0.1 else LARGE[:2])


def _mixed(chance: random.Random) -> Any:
    return {_text(chance): [_number(chance), _text(chance)], "n": _number(chance), "": None}


def _no_json(chance: random.Random) -> Any:
    return chance.choice((object(), {(1, 2): 3}, {1, 2}, b"bytes", NotImplemented, Liar(), Endless()))


class Liar(dict[str, Any]):
    """A dictionary that dies of being looked at."""

    def __init__(self) -> None:
        super().__init__(secret=1)

    def items(self) -> Any:
        """Refuse to be serialised."""
        raise SystemExit("the result is nobody's business")

    def __bool__(self) -> bool:
        raise KeyboardInterrupt

    def __len__(self) -> int:
        return 1


class Endless(list[Any]):
    """A list that contains itself."""

    def __init__(self) -> None:
        super().__init__()
        self.append(self)


class Mute(Exception):
    """Raises when it is asked for its text."""

    def __str__(self) -> str:
        raise SystemExit("no text for you")

    __repr__ = __str__


class Bytes(Exception):
    """Gives bytes where text is due."""

    def __str__(self) -> str:
        return b"bytes"  # type: ignore[return-value]


class Flood(Exception):
    """Gives a hundred megabytes of text."""

    def __str__(self) -> str:
        return "x" * (100 * 2**20)


class Impostor(Exception):
    """Lies in every attribute that a program may look at."""

    error_code = property(lambda self: 1 / 0)
    sqlstate = property(lambda self: b"\x00")
    orig = property(lambda self: self)
    response = property(lambda self: self)
    status_code = property(lambda self: True)
    __cause__ = property(lambda self: self)
    __class__ = property(lambda self: int)


class Unpicklable(Exception):
    """Cannot be taken to another process, nor made without its arguments."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__(lambda: first)

    def __reduce__(self) -> NoReturn:
        raise TypeError("not this one")


class Rebel(BaseException):
    """No Exception, so that nobody who catches those sees it."""


class LongCode(Exception):
    """Has a code that fits in no column and on no line."""

    error_code = "c\x00\r\n\u202e\ud800" * 10_000


def _circle() -> NoReturn:
    error, cause = ValueError("round"), KeyError("and round")
    error.__cause__, cause.__cause__ = cause, error
    raise error


def _long_chain() -> NoReturn:
    error: BaseException = ValueError(0)
    for number in range(1, 5_000):
        error, older = ValueError(number), error
        error.__cause__ = older
    raise error


def _wide_chain() -> NoReturn:
    error: BaseException = ValueError("🚨" * 3_000)
    for _ in range(20):
        error, older = ValueError("🚨" * 3_000), error
        error.__context__ = older
    raise error


def _deep_group() -> NoReturn:
    group: BaseException = ValueError("\x00" * 5_000)
    for number in range(500):
        group = BaseExceptionGroup(f"level {number}", [group] * 20)
    raise group


def _unending() -> NoReturn:
    _unending()


def _odd_place() -> None:
    exec(compile("raise ValueError('from nowhere')", "a\x00b\ud800\n" * 3_000, "exec"))


def _raiser(make: Callable[[], BaseException]) -> Callable[[], NoReturn]:
    def raise_it() -> NoReturn:
        raise make()

    return raise_it


# Each way of failing, and the code under which it has to be found.
FAILURES: dict[str, tuple[Callable[[], object], str]] = {
    "its text raises": (_raiser(Mute), "Mute"),
    "its text is bytes": (_raiser(Bytes), "Bytes"),
    "its text is 100 MB": (_raiser(Flood), "Flood"),
    "NUL and halves of characters in its text": (
        _raiser(lambda: ValueError("a\x00b\ud800c\udfff\u202e")),
        "ValueError",
    ),
    "a circle of causes": (_circle, "ValueError"),
    "5,000 causes": (_long_chain, "ValueError"),
    "20 contexts of wide characters": (_wide_chain, "ValueError"),
    "groups in groups": (_deep_group, "ValueError"),
    "recursion without end": (_unending, "RecursionError"),
    "unpicklable": (_raiser(lambda: Unpicklable(1, 2)), "Unpicklable"),
    "a BaseException": (_raiser(Rebel), "Rebel"),
    "KeyboardInterrupt": (_raiser(KeyboardInterrupt), "KeyboardInterrupt"),
    "every attribute lies": (_raiser(Impostor), "Impostor"),
    "a code of 60,000 characters": (_raiser(LongCode), "c"),
    "raised in a file without a name": (_odd_place, "ValueError"),
    "its class has an odd name": (_raiser(type("A\nb\u202e" * 500, (Exception,), {})), "A"),
}
