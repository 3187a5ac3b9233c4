"""What a run prints, as text: what a terminal makes of it, what of long output stays, where secrets are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from wakeboard.core.outcome import OUTPUT_BYTES, result_of_exception
from wakeboard.core.process.output_file import clear_output, create_output, read_output, read_tail, trim
from wakeboard.core.text.redaction import redact_text
from wakeboard.core.text.sanitize import clean_text, render_terminal, safe_text


@pytest.fixture
def output() -> Iterator[int]:
    """A new output file."""
    made = create_output(0)
    yield made
    os.close(made)


SCREENS = [
    ("one\r\ntwo\r\n", "one\ntwo\n"),
    ("over ssh\r\r\nof Windows\r\r\n", "over ssh\nof Windows\n"),
    (" 10%\r 50%\r100%\n", "100%\n"),
    ("50%\r100%\r", "100%"),
    ("a\rb\nc\rd", "b\nd"),
    ("\x1b[1;31mred\x1b[0m and \x1b[38;5;208morange\x1b[m\n", "red and orange\n"),
    ("\x1b]0;title\x07text", "text"),
    ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1bP1$r0m\x1b\\text\x1b(B\x1b7\x1b=", "text"),
    ("\x1b[?25l[####]\x1b[K\r\x1b[2K[done]\x1b[?25h\n", "[done]\n"),
    ("\x9b31mred\x9b0m", "red"),
    ("cut \x1b[38;5", "cut "),
    ("cut \x1b]0;half a title", "cut "),
    ("cut \x1b", "cut "),
    ("an unended title \x1b]0;x\nis over with its line", "an unended title \nis over with its line"),
    ("|\b/\b-\bdone", "done"),
    ("N\bNA\bAM\bME\bE", "NAME"),
    ("100%\b\b\b\b", "100%"),
    ("\b\bx", "x"),
    ("tab\tand ä 日本 stay", "tab\tand ä 日本 stay"),
    ("\a\x00\x7f", "\ufffd\ufffd\ufffd"),
]


@pytest.mark.parametrize(("text", "shown"), SCREENS)
def test_a_text_is_what_a_terminal_leaves_of_it(output: int, text: str, shown: str) -> None:
    assert safe_text(text) == shown
    assert clean_text(text, 1000) == shown
    os.write(output, text.encode())
    assert read_output(output, OUTPUT_BYTES) == shown
    assert result_of_exception(RuntimeError(text)).message == shown


@pytest.mark.parametrize("part", ["\r", "\r\n", "\b", "\x1b", "\x1b]", "\x1b[0", "\x9d", "x", "x\b", "\r \r"])
def test_no_text_takes_long(part: str) -> None:
    began = time.process_time()
    render_terminal(f"\r{part * 100_000}\r{'y' * 100_000}\b")
    assert time.process_time() - began < 2


def test_of_long_output_the_ends_stay_and_how_much_is_missing_is_said(output: int) -> None:
    lines = [f"line {number:05}\n" for number in range(10_000)]
    for line in lines:
        os.write(output, line.encode())
    text = read_output(output, OUTPUT_BYTES)
    assert len(text.encode()) <= OUTPUT_BYTES
    assert text.startswith("line 00000\nline 00001\n") and text.endswith("line 09998\nline 09999\n")
    (gap,) = [line for line in text.split("\n") if "…" in line]
    shown = [line for line in text.split("\n") if line.startswith("line")]
    assert gap == f"… {11 * (10_000 - len(shown)):,} bytes left out …"
    assert all(len(line) == 10 for line in shown)
    assert 150 < len([line for line in shown if line < "line 05000"]) < 200 < 450 < len(shown)


@pytest.mark.parametrize("count", [2_000, 6_400, 100_000])
def test_no_border_cuts_a_character_or_a_colour(output: int, count: int) -> None:
    for shift in range(8):
        clear_output(output)
        os.write(output, b"x" * shift + "\x1b[31m日本\x1b[0m".encode() * count)
        text = read_output(output, OUTPUT_BYTES)
        assert set(text.replace("x", "", shift)) <= set("日本\n… bytesleftout,0123456789")
        assert "\ufffd" not in text and "left out" in text
        assert len(text.encode()) <= OUTPUT_BYTES


def test_what_was_written_by_halves_is_not_shown_by_halves(output: int) -> None:
    os.write(output, "waiting for 日".encode()[:-1])
    assert read_output(output, OUTPUT_BYTES) == "waiting for "
    os.write(output, "日".encode()[-1:] + b"\x1b[3")
    assert read_output(output, OUTPUT_BYTES) == "waiting for 日"


def test_a_progress_bar_of_a_megabyte_is_one_line(output: int) -> None:
    os.write(output, b"begin\n" + b"".join(b"\r%6.2f%%" % (n / 1000) for n in range(100_000)) + b"\nend\n")
    text = read_output(output, OUTPUT_BYTES)
    first, *_, last, end, rest = text.split("\n")
    assert (first, last, end, rest) == ("begin", "100.00%", "end", "")
    assert len(text) < 100


def test_the_beginning_outlives_the_memory_that_is_given_back(output: int) -> None:
    os.write(output, b"the first line\n")
    for _ in range(40):
        os.write(output, b"more\n" * 20_000)
        trim(output)
    os.write(output, b"the last line\n")
    text = read_output(output, OUTPUT_BYTES)
    assert text.startswith("the first line\nmore\n") and text.endswith("more\nthe last line\n")
    assert "\ufffd" not in text
    assert os.fstat(output).st_blocks * 512 <= 1024 * 1024 + 100_000


def test_the_tail_since_a_byte_has_its_first_line(output: int) -> None:
    os.write(output, b"before\nafter\n")
    assert read_tail(output, 1000, since=7) == "after\n"
    assert read_tail(output, 9, since=0) == "after\n"
    assert read_tail(output, 1000, since=99) == ""


@pytest.mark.parametrize(
    "text",
    [
        "PASS\x1b[31mWORD=hunter2hunter2\x1b[0m",
        "password=\x1b[1mhunter2hunter2\x1b[0m",
        "Authorization: Bea\x1b[0mrer hunter2hunter2",
        "PASSWX\bORD=hunter2hunter2",
        "PASSWORD=x\rPASSWORD=hunter2hunter2",
        "postgresql://anna:\x1b[4mhunter2hunter2\x1b[24m@db/shop",
    ],
)
def test_no_colour_keeps_a_secret_from_being_seen(output: int, text: str) -> None:
    os.write(output, text.encode())
    for shown in (read_output(output, OUTPUT_BYTES), str(result_of_exception(ValueError(text)).message)):
        assert "hunter2" not in redact_text(shown) and "•••" in redact_text(shown)
