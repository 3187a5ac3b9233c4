"""What makes two failures the same: the words that stay, the place in the author's own code, nothing else."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time

import pytest

from tests.support.processes import ROOT, surroundings
from wakeboard.core.errors.error_groups import (
    CODES_WITHOUT_FRAME,
    group_of,
    is_own,
    lost_group,
    own_frame,
    parse_fingerprint,
    template_of,
    trace_lines,
)

STDLIB = sysconfig.get_path("stdlib")
TRACE = f"""Traceback (most recent call last):
  File "/srv/releases/{{release}}/shop/invoices.py", line {{line}}, in send_invoice
    send(customer.address)
  File "/srv/releases/{{release}}/shop/crm.py", line 9, in send
    smtplib.SMTP(host).send_message(mail)
  File "{STDLIB}/smtplib.py", line 341, in connect
    self.sock = self._get_socket(host, port, self.timeout)
  File "/srv/venv/lib/python3.12/site-packages/smtpkit/wire.py", line 4, in dial
    raise OSError()
OSError: [Errno 111] Connection refused"""


@pytest.mark.parametrize(
    ("one", "other", "template"),
    [
        ("order 812 was refused", "order 90417 was refused", "order <n> was refused"),
        ("took 1.5 s, 3,000 rows", "took 27.25 s, 12 rows", "took <n> s, <n> rows"),
        ("no customer 'ACME'", "no customer 'O-Neill & Sons 7'", "no customer <value>"),
        ('no key "a b"', 'no key "c"', "no key <value>"),
        ("kein Kunde „ACME“", "kein Kunde „Big, Inc.“", "kein Kunde <value>"),
        ("no “ACME” of ‘x’", "no “Big, Inc.” of ‘y’", "no <value> of <value>"),
        ("bounced: anna@example.com", "bounced: b.c+d@mail.example.org", "bounced: <address>"),
        ("GET https://crm/x?id=7 failed", "GET http://10.0.0.1:80/y failed", "GET <address> failed"),
        ("connect to 10.0.0.7:5432", "connect to 192.168.1.20:5433", "connect to <address>"),
        ("connect to fe80::1ff:fe23", "connect to ::1", "connect to <address>"),
        (
            "run 550e8400-e29b-41d4-a716-446655440000",
            "run 123e4567-e89b-12d3-a456-426614174000",
            "run <id>",
        ),
        ("<Conn object at 0x7f12ab34cd56>", "<Conn object at 0xdeadbeef>", "<Conn object at <id>>"),
        ("commit deadbeef01", "commit 0123456789abcdef0123456789abcdef01234567", "commit <id>"),
        ("due 2026-11-21T08:30:01.5Z", "due 2025-01-02 03:04:05+01:00", "due <time>"),
        ("at 02:14:07", "at 23:59:59.999", "at <time>"),
        ("no file /srv/app/data/17.csv", "no file /tmp/x/y.csv", "no file <path>"),
        ("deadlock\n  DETAIL: 12", "deadlock\tDETAIL: 7", "deadlock DETAIL: <n>"),
        ("user42 is gone", "user7 is gone", "user<n> is gone"),
    ],
)
def test_what_changes_from_run_to_run_does_not_part_failures(one: str, other: str, template: str) -> None:
    assert template_of(one) == template_of(other) == template
    assert group_of("mail", "x", one) == group_of("mail", "x", other)


@pytest.mark.parametrize(
    "other",
    [
        ("report", "x", "gone", None),
        ("mail", "y", "gone", None),
        ("mail", "x", "gone away", None),
        ("mail", "x", "gone", TRACE.format(release="1", line=1)),
    ],
)
def test_type_code_words_and_place_part_failures(other: tuple[str, str, str, str | None]) -> None:
    assert group_of("mail", "x", "gone").id != group_of(*other).id


@pytest.mark.parametrize("text", ["0XAB", "at(02:14:07)", "x@y", "~/a/b", "‘a’", "«a»", "`a`", "fe80::1"])
def test_something_changing_is_found_by_itself(text: str) -> None:
    assert "<" in template_of(text)


def test_words_that_only_look_like_something_changing_stay() -> None:
    for text in ("don't and can't", "either/or", "a fee", "C'est fini: l'hôte", "decade of beef"):
        assert template_of(text) == text


def test_the_place_is_the_innermost_frame_of_the_authors_own_code() -> None:
    assert own_frame(TRACE.format(release="1", line=1)) == "crm.py in send"
    assert own_frame("") is None
    assert own_frame('  File "<frozen runpy>", line 1, in run\n  File "<string>", line 1, in x') is None


def test_another_release_in_another_folder_with_other_lines_finds_the_same_group() -> None:
    old, new = TRACE.format(release="2026-01-01", line=17), TRACE.format(release="2026-02-02", line=99)
    assert group_of("mail", "OSError", "gone", old) == group_of("mail", "OSError", "gone", new)


@pytest.mark.parametrize("code", sorted(CODES_WITHOUT_FRAME))
def test_where_a_stopped_handler_stood_does_not_part_its_failures(code: str) -> None:
    here = group_of("mail", code, "stopped", TRACE.format(release="1", line=1))
    assert here == group_of("mail", code, "stopped") and here.frame is None


def test_python_packages_and_this_product_are_not_the_authors_code() -> None:
    assert is_own("/srv/app/worker.py") and is_own("handlers.py") and is_own("/home/a/lib/crm.py")
    for path in (
        f"{STDLIB}/json/decoder.py", "/usr/lib/python3/dist-packages/x.py", "/x/site-packages/y.py",
        "<string>", "/usr/lib/python312.zip/os.py", str(ROOT / "worker/wakeboard/handlers/invoke.py"),
    ):  # fmt: skip
        assert not is_own(path), path
    assert is_own(str(ROOT / "worker/wakeboard/demo/catalogue.py")), "examples stand for one's own"


def test_a_trace_shows_which_lines_are_the_authors() -> None:
    own = [line.text.strip() for line in trace_lines(TRACE.format(release="1", line=1)) if line.is_own]
    assert own == [
        'File "/srv/releases/1/shop/invoices.py", line 1, in send_invoice',
        "send(customer.address)",
        'File "/srv/releases/1/shop/crm.py", line 9, in send',
        "smtplib.SMTP(host).send_message(mail)",
    ]


# A change of these numbers makes every group of every installation new.
def test_a_group_has_the_same_number_in_every_process_and_version() -> None:
    trace = TRACE.format(release="1", line=1)
    assert group_of("mail", "smtp_down", "The mail server did not answer.").fingerprint == "049df05ce6fe7"
    assert group_of("mail", "OSError", "[Errno 111] Connection refused", trace).fingerprint == "662424f203924"
    load = "from wakeboard.core.errors.error_groups import group_of"
    code = f"{load}; print(group_of('mail', 'x', 'ünï 7').fingerprint)"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=surroundings(None, {"PYTHONHASHSEED": seed}),
            text=True, capture_output=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert seen == {group_of("mail", "x", "ünï 7").fingerprint}


def test_a_number_is_exact_in_every_reader_of_json_and_is_read_back() -> None:
    for number in range(300):
        group = group_of("mail", f"code{number}", "x" * number)
        assert 0 < group.id < 2**53 and parse_fingerprint(group.fingerprint) == group.id
    for wrong in ("", "x", "0" * 12, "0" * 14, "A" * 13, "0x00000000001", " 000000000001"):
        with pytest.raises(ValueError, match="is no error group"):
            parse_fingerprint(wrong)


def test_the_worst_message_and_trace_cost_little_and_stay_short() -> None:
    pieces = ("'", '"', "a", "1", "/a", "a@", "a.", "0x", "-", "f1", "[::", "a1:", "12:", "\ud800", "\n")
    for piece in pieces:
        began = time.perf_counter()
        group = group_of("mail", "x", piece * 200_000, f'  File "{piece * 100_000}\n' * 3)
        assert time.perf_counter() - began < 1, piece
        assert len(group.template) <= 300 and len(group.frame or "") <= 200


def test_a_lost_lease_is_one_group_per_type_whoever_noticed() -> None:
    assert lost_group("mail").id != lost_group("report").id
    assert lost_group("mail").template == "the worker fell silent and its lease ended"
