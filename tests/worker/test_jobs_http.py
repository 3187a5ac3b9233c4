"""The built-in job type ``http``: one request against a real server, judged by its status."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

import pytest

from tests.support.receivers import serving
from wakeboard.core import http_response
from wakeboard.core.builtin_payloads import method_of
from wakeboard.core.outcome import DeadlineExceeded, Permanent, Retryable
from wakeboard.handlers.builtin.http import http_request, retry_after
from wakeboard.handlers.context import Context


class Provider(ThreadingHTTPServer):
    """A server that answers with what the path says, and remembers what it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[dict[str, Any]] = []
        self.release = threading.Event()
        self.date: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.server.seen.append(
            {
                "method": self.command,
                "path": self.path,
                "headers": {name.lower(): value for name, value in self.headers.items()},
                "body": self.rfile.read(length).decode(),
            }
        )
        word, _, rest = self.path[1:].partition("/")
        if word == "hang":
            self.server.release.wait(20)
            return
        if word == "broken":
            self.wfile.write(unquote(rest).encode())
            self.close_connection = True
            return
        if word == "endless":
            self.wfile.write(WHOLE.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
                    time.sleep(0.01)
            self.close_connection = True
            return
        if word == "cut":
            self.close_connection = True
            return
        self.send_response(int(word))
        if word.startswith("3"):
            self.send_header("Location", rest)
        elif rest:
            self.send_header("Retry-After", unquote(rest))
        body = b"\n the reason why \x1b[31m\nmore"
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return self.server.date or super().date_time_string(timestamp)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[Provider]:
    server = Provider()
    with serving(server):
        yield server
        server.release.set()


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The instructions come from the run itself; the tests of ``command`` tell of definitions."""
    monkeypatch.setenv("WAKEBOARD_ALLOW_COMMANDS", "1")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def run(timeout: float = 20, key: str | None = None, **payload: Any) -> dict[str, int]:
    return http_request(
        Context(run_id=42, job_type="http", payload=payload, key=key, timeout_seconds=timeout)
    )


def test_a_key_that_no_header_can_hold_is_sent_in_percents(provider: Provider) -> None:
    run(url=f"{provider.url}/200", key="10 €")
    assert provider.seen[-1]["headers"]["idempotency-key"] == "10%20%E2%82%AC"


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({}, "GET"), ({"json": None}, "POST"), ({"body": ""}, "POST"), ({"body": None}, "GET"),
        ({"json": {}, "method": "put"}, "PUT"), ({"body": "x", "method": "GET"}, "GET"),
    ],
)  # fmt: skip
def test_what_has_a_body_is_posted_unless_it_says_otherwise(given: dict[str, Any], method: str) -> None:
    assert method_of(given) == method


def test_a_request_is_sent_and_the_answer_is_in_the_output(
    provider: Provider, capfd: pytest.CaptureFixture[str]
) -> None:
    headers = {"X-Team": "shop"}
    assert run(url=f"{provider.url}/200", method="post", json={"order": 7}, headers=headers) == {
        "status": 200
    }
    (seen,) = provider.seen
    assert (seen["method"], json.loads(seen["body"])) == ("POST", {"order": 7})
    assert seen["headers"]["content-type"] == "application/json"
    assert seen["headers"]["x-team"] == "shop"
    output = capfd.readouterr().out
    assert output.startswith("200 OK\n")
    assert "the reason why" in output
    assert "\x1b" not in output


def test_every_attempt_sends_the_same_idempotency_key(provider: Provider) -> None:
    run(url=f"{provider.url}/204", method="POST", body="hello", key="order:7:paid")
    run(url=f"{provider.url}/204", method="POST")
    keys = [seen["headers"]["idempotency-key"] for seen in provider.seen]
    assert keys == ["order:7:paid", "run-42"]


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 409, 425, 429])
def test_a_provider_in_trouble_is_tried_again(provider: Provider, status: int) -> None:
    with pytest.raises(Retryable, match="the reason why") as failed:
        run(url=f"{provider.url}/{status}")
    assert failed.value.error_code == f"http_{status}"
    assert failed.value.after is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 422])
def test_a_refusal_is_not_tried_again(provider: Provider, status: int) -> None:
    with pytest.raises(Permanent, match=str(status)) as failed:
        run(url=f"{provider.url}/{status}")
    assert failed.value.error_code == f"http_{status}"


def test_the_pause_that_a_provider_asks_for_is_kept(provider: Provider) -> None:
    with pytest.raises(Retryable) as failed:
        run(url=f"{provider.url}/429/120")
    assert failed.value.after == 120


@pytest.mark.parametrize(("date", "waits"), [("Sat, 03 Jan 2026 12:00:00 GMT", 120), ("no date", 0)])
def test_a_date_to_wait_for_is_measured_by_the_clock_of_who_says_it(
    provider: Provider, date: str, waits: int
) -> None:
    provider.date = date
    with pytest.raises(Retryable) as failed:
        run(url=f"{provider.url}/429/{quote('Sat, 03 Jan 2026 12:02:00 GMT')}")
    assert failed.value.after == waits


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("0", 0),
        ("120", 120),
        ("999999999", 86_400),
        ("Sat, 03 Jan 2026 12:02:00 GMT", 120),
        ("Sat, 03 Jan 2026 11:00:00 GMT", 0),
        ("-5", None),
        ("soon", None),
        ("Sat, 99 Jan 2026 11:00:00 GMT", None),
        ("1e99", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, datetime(2026, 1, 3, 12, 0, tzinfo=UTC)) == seconds


def test_a_provider_that_does_not_answer_is_a_timeout(provider: Provider) -> None:
    with pytest.raises(Retryable) as failed:
        run(url=f"{provider.url}/hang", timeout=0.8)
    assert failed.value.error_code == "http_timeout"


def test_a_provider_that_is_away_or_hangs_up_is_unreachable(provider: Provider) -> None:
    for url in (f"{provider.url}/cut", "http://127.0.0.1:1/"):
        with pytest.raises(Retryable, match="cannot be reached") as failed:
            run(url=url)
        assert failed.value.error_code == "http_unreachable"


WHOLE = "HTTP/1.1 200 OK\r\n"
CHUNKED = f"{WHOLE}Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (f"{WHOLE}Content-Length: 10\r\n\r\nhalf", "broke off after 4 of 10 bytes"),
        (f"{WHOLE}Content-Length: 9000\r\n\r\n{'x' * 4000}", "broke off after 4,000 of 9,000 bytes"),
        (f"{WHOLE}Content-Length: 1\r\n\r\n", "broke off after 0 of 1 bytes"),
        (f"{CHUNKED}4\r\nhalf\r\n", "broke off after"),
        (f"{CHUNKED}ff\r\nhalf", "broke off after"),
        (CHUNKED, "broke off after 0 bytes"),
    ],
)
def test_an_answer_that_is_cut_off_is_tried_again(provider: Provider, answer: str, said: str) -> None:
    with pytest.raises(Retryable, match=said) as failed:
        run(url=f"{provider.url}/broken/{quote(answer)}")
    assert failed.value.error_code == "http_cut_off"
    assert f"127.0.0.1:{provider.server_port} took the request, but" in str(failed.value)


def test_an_answer_that_never_ends_is_a_success_once_it_was_looked_at_for_a_while(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_response, "_READ_SECONDS", 0.5)
    assert run(url=f"{provider.url}/endless", timeout=60)["status"] == 200


@pytest.mark.parametrize(
    "answer",
    [
        f"{WHOLE}Content-Length: 4\r\n\r\nwhole"[:-1],
        f"{WHOLE}\r\nuntil it hangs up",
        f"{CHUNKED}5\r\nwhole\r\n0\r\n\r\n",
        f"{WHOLE}Content-Length: 0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n",
        f"{WHOLE}Content-Length: 5000\r\n\r\n{'x' * 5000}",
    ],
)
def test_an_answer_that_is_whole_is_a_success(provider: Provider, answer: str) -> None:
    assert run(url=f"{provider.url}/broken/{quote(answer)}")["status"] in (200, 204)


def test_the_answer_to_a_head_has_no_body(provider: Provider) -> None:
    assert run(url=f"{provider.url}/200", method="HEAD") == {"status": 200}


def test_no_request_is_sent_after_the_deadline(provider: Provider) -> None:
    with pytest.raises(DeadlineExceeded):
        run(url=f"{provider.url}/200", timeout=0.0)
    assert provider.seen == []


def test_a_get_follows_a_redirect_and_keeps_its_secrets_from_other_hosts(provider: Provider) -> None:
    other = f"http://localhost:{provider.server_port}/200"
    assert run(url=f"{provider.url}/302/{other}", headers={"Authorization": "Bearer x"}) == {"status": 200}
    first, second = provider.seen
    assert first["headers"]["authorization"] == "Bearer x"
    assert "authorization" not in second["headers"]
    assert run(url=f"{provider.url}/307//200", headers={"Authorization": "Bearer x"}) == {"status": 200}
    assert provider.seen[-1]["headers"]["authorization"] == "Bearer x"


def test_a_post_is_not_repeated_at_another_address(provider: Provider) -> None:
    with pytest.raises(Retryable) as failed:
        run(url=f"{provider.url}/302//200", method="POST", body="x")
    assert failed.value.error_code == "http_302"
    assert len(provider.seen) == 1


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_redirect_leads_to_no_other_scheme(provider: Provider, target: str) -> None:
    with pytest.raises(Retryable) as failed:
        run(url=f"{provider.url}/302/{target}")
    assert failed.value.error_code == "http_302"


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"url": "file:///etc/passwd"},
        {"url": "ftp://example.com/"},
        {"url": "http://"},
        {"url": "http://exa mple.com/"},
        {"url": "http://example.com/\r\nX: 1"},
        {"url": "http://[::1"},
        {"url": "http://example.com:99999/"},
        {"url": 7},
        {"url": "http://example.com/", "method": "BREW"},
        {"url": "http://example.com/", "headers": {"A": "b\r\nC: d"}},
        {"url": "http://example.com/", "headers": {"A": 1}},
        {"url": "http://example.com/", "headers": {"": "x"}},
        {"url": "http://example.com/", "headers": {"X:Y": "x"}},
        {"url": "http://example.com/", "headers": {"X-Price": "10 €"}},
        {"url": "http://example.com/", "body": "x", "json": {}},
        {"url": "http://example.com/", "argv": ["ls"]},
    ],
)
def test_instructions_that_make_no_sense_are_dead_with_a_sentence(payload: dict[str, Any]) -> None:
    with pytest.raises(Permanent, match="cannot be followed") as refused:
        run(**payload)
    assert refused.value.error_code == "instructions_unreadable"
