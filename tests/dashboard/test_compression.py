"""What goes over the wire is small, the same, and never compressed for somebody else's page."""

from __future__ import annotations

import gzip
import json
import re

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.conftest import Connection
from tests.support.factories import a_run
from tests.support.processes import ROOT
from wakeboard_dashboard.web.files import OURS, SCRIPTS_ARE, content

PACKED = {"Accept-Encoding": "gzip, deflate, br, zstd"}


def plain(answer: TestResponse) -> str:
    """Return the text of an answer that must be compressed."""
    assert answer.headers["Content-Encoding"] == "gzip"
    assert int(answer.headers["Content-Length"]) == len(answer.get_data())
    return gzip.decompress(answer.get_data()).decode()


@pytest.mark.parametrize("address", ["/runs", "/runs.json", "/_fragments/runs/list", "/audit"])
def test_a_compressed_answer_is_the_plain_one(
    client: FlaskClient, connection: Connection, address: str
) -> None:
    for _ in range(5):
        a_run(connection, "dead")
    small, large = client.get(address, headers=PACKED), client.get(address)
    assert "Content-Encoding" not in large.headers
    assert small.status_code == large.status_code
    assert without_times(plain(small)) == without_times(large.text)
    assert len(small.get_data()) < len(large.get_data())
    assert "Accept-Encoding" in small.headers["Vary"]


def without_times(text: str) -> str:
    return re.sub(r"\d+:\d\d:\d\d[.\d]*|\d+\.\d{3,}", "…", text)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_site_asks_for_goes_out_plain(client: FlaskClient, site: str) -> None:
    answer = client.get("/runs?q=guess", headers=PACKED | {"Sec-Fetch-Site": site})
    assert answer.status_code == 200
    assert "Content-Encoding" not in answer.headers
    typed = client.get("/runs?q=guess", headers=PACKED | {"Sec-Fetch-Site": "none"})
    assert typed.headers["Content-Encoding"] == "gzip"


def test_a_browser_that_does_not_say_who_asks_gets_it_plain_and_a_program_small(
    app: Flask, client: FlaskClient, connection: Connection
) -> None:
    del client.environ_base["HTTP_SEC_FETCH_SITE"]
    assert "Content-Encoding" not in client.get("/runs", headers=PACKED).headers
    a_run(connection, "queued")
    assert app.test_client().get("/metrics", headers=PACKED).headers["Content-Encoding"] == "gzip"


def test_static_files_are_compressed_and_kept_for_ever_under_the_name_of_their_content(
    client: FlaskClient,
) -> None:
    page = client.get("/").text
    files = set(re.findall(r'(?:href|src)="(/static/[^"#]+)', page))
    assert len(files) >= 4
    for file in files:
        answer = client.get(file, headers=PACKED)
        assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable", file
        assert answer.headers["Vary"] == "Accept-Encoding"
        assert plain(answer) == client.get(file).text
        again = client.get(file, headers=PACKED | {"If-None-Match": answer.headers["ETag"]})
        assert again.status_code == 304


def test_the_scripts_come_as_one_file_each_as_it_is_and_in_order(client: FlaskClient) -> None:
    whole = client.get("/static/scripts.js").get_data()
    parts = [client.get(f"/static/{name}").get_data() for name in SCRIPTS_ARE]
    assert whole == b";\n".join(parts)
    vendored = {f"vendor/{file.name}" for file in (ROOT / "static/vendor").glob("*.js")}
    assert set(SCRIPTS_ARE) == vendored | {"app.js"}


def test_a_file_asked_for_by_another_versions_name_is_not_kept(client: FlaskClient) -> None:
    assert client.get("/static/app.css?v=000000000000").headers["Cache-Control"] == "no-store"
    assert client.get("/static/app.css").headers["Cache-Control"] == "public, max-age=3600"


def test_what_is_short_stays_as_it_is(client: FlaskClient) -> None:
    answer = client.get("/healthz", headers=PACKED)
    assert "Content-Encoding" not in answer.headers
    assert answer.get_data()


def test_an_export_is_compressed_as_it_is_written(client: FlaskClient, connection: Connection) -> None:
    for _ in range(5):
        a_run(connection, "dead")
    small, large = client.get("/runs.csv", headers=PACKED), client.get("/runs.csv")
    assert small.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(small.get_data()) == large.get_data()
    assert large.get_data().count(b"\r\n") == 6


def test_who_refuses_gzip_gets_none(client: FlaskClient) -> None:
    for accepted in ("identity", "gzip;q=0", "br"):
        answer = client.get("/runs.json", headers={"Accept-Encoding": accepted})
        assert "Content-Encoding" not in answer.headers
        assert "items" in json.loads(answer.get_data())


@pytest.mark.parametrize("name", OURS)
def test_what_is_written_for_authors_stays_here_and_all_else_goes_out(name: str) -> None:
    lines = [line.strip() for line in (ROOT / "static" / name).read_text().splitlines()]
    sent = content(str(ROOT / "static"), name).decode()
    said = [line for line in lines if line and not line.startswith(("//", "/*")) and not line.endswith("*/")]
    assert sent.splitlines() == said
    assert len(said) < len(lines)


def test_an_address_that_leads_on_says_how_long_its_answer_is_or_nothing(client: FlaskClient) -> None:
    answer = client.get("/runs/find?text=status:dead", headers=PACKED)
    assert answer.status_code == 303
    assert int(answer.headers.get("Content-Length", len(answer.data))) == len(answer.data)
