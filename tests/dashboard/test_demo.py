"""The example shop's page: there where there is a shop, and its buttons make real work."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, assert_fragments_match, assert_shown_as_text
from tests.support.factories import rows
from wakeboard.demo import shop

JSON = {"Accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"


@pytest.fixture
def opened(connection: Connection) -> None:
    """The shop's tables, customers and products, without its past."""
    shop.create_tables(connection)


def a_mail(connection: Connection, subject: str = "Invoice 7", message_id: str | None = "<7@shop>") -> None:
    connection.execute(
        """INSERT INTO shop.mails (message_id, sender, recipients, subject, body, attachments)
        VALUES (%s, 'shop@example.com', ARRAY[%s], %s, %s, ARRAY[%s])""",
        (message_id, subject, subject, subject, subject),
    )


def test_without_a_shop_there_is_no_page_and_no_link(client: FlaskClient) -> None:
    for path in ("/demo", "/demo.json", "/_fragments/demo/mails"):
        answer = client.get(path)
        assert answer.status_code == 404 and "wakeboard up --demo" in answer.text, path
    assert client.post("/demo/order", headers=JSON).status_code == 404
    assert 'href="/demo"' not in client.get("/").text


@pytest.mark.usefixtures("opened")
def test_with_a_shop_every_page_links_to_it(client: FlaskClient) -> None:
    assert 'href="/demo"' in client.get("/").text
    page = client.get("/demo").text
    assert "No orders yet" in page and "No mail has arrived" in page


@pytest.mark.usefixtures("opened")
def test_an_order_is_placed_with_the_run_that_charges_it(client: FlaskClient, connection: Connection) -> None:
    assert "A run charges the card" in client.get("/demo/order").text
    answer = client.post("/demo/order", data={"reason": "a try"}, headers=JSON)
    assert answer.status_code == 200 and "was placed" in answer.get_json()["message"]
    (order,) = client.get("/demo.json").get_json()["orders"]
    assert order["status"] == "NEW" and order["run_id"] in [run["id"] for run in rows(connection, "job_runs")]
    assert f'href="/runs/{order["run_id"]}"' in client.get("/demo").text
    (entry,) = rows(connection, "audit_log", "action = 'run.enqueue'")
    assert (entry["actor"], entry["reason"], entry["result"]) == ("admin", "a try", "done")


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("button", ["signup", "export", "report"])
def test_every_button_enqueues(client: FlaskClient, connection: Connection, button: str) -> None:
    back = client.post(f"/demo/{button}", data={"next": "/demo"})
    assert (back.status_code, back.location) == (303, "/demo")
    assert len(rows(connection, "job_runs")) == 1


@pytest.mark.usefixtures("opened")
def test_a_mail_that_came_twice_is_told(client: FlaskClient, connection: Connection) -> None:
    a_mail(connection)
    a_mail(connection, message_id="<8@shop>")
    assert "none came twice" in client.get("/demo").text
    a_mail(connection)
    assert "1 mail of the newest 3 came more than once" in client.get("/demo").text


@pytest.mark.usefixtures("opened")
def test_mails_are_shown_as_text_and_live(client: FlaskClient, connection: Connection) -> None:
    a_mail(connection, HOSTILE, HOSTILE)
    client.post("/demo/order", headers=JSON)
    assert_shown_as_text(client, "/demo")
    assert_fragments_match(client, "/demo")


@pytest.mark.usefixtures("opened")
def test_a_viewer_only_looks(as_role: AsRole, connection: Connection) -> None:
    viewer = as_role("viewer")
    assert "Needs the role operator" in viewer.get("/demo").text
    assert viewer.get("/demo/order").status_code == 403
    assert viewer.post("/demo/order").status_code == 403
    assert rows(connection, "job_runs") == []
