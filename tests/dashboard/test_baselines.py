"""What the pages of types tell of the last day."""

from __future__ import annotations

from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import items_of
from tests.support.factories import a_type

TYPES = ("mail", "report")


def ends(connection: Connection, job_type: str, ago: str, table: str = "statistics_rollups") -> None:
    """Write an attempt of one second that ended so long ago."""
    connection.execute(
        f"""INSERT INTO wakeboard.{table} VALUES
        (date_trunc('minute', now()) - %s::interval, %s, 'succeeded', 20, 5, 1, 1000, 1000, 1, 1)""".encode(),
        (ago, job_type),
    )


def succeeded(client: FlaskClient) -> dict[str, int]:
    return {item["name"]: item["succeeded_24h"] for item in items_of(client, "/types.json")}


def test_what_ends_is_told_at_once_whether_it_is_merged_or_not(
    client: FlaskClient, connection: Connection
) -> None:
    for name in TYPES:
        a_type(connection, name)
        ends(connection, name, "0 minutes")
        ends(connection, name, "10 hours")
    assert succeeded(client) == {"mail": 2, "report": 2}
    ends(connection, "mail", "1 minute")
    assert succeeded(client) == {"mail": 3, "report": 2}
    ends(connection, "mail", "1 minute", "statistics_deltas")
    assert succeeded(client) == {"mail": 4, "report": 2}


def test_a_type_tells_the_same_of_its_day_as_the_list(client: FlaskClient, connection: Connection) -> None:
    a_type(connection, "mail")
    for ago in ("0 minutes", "3 hours", "20 hours"):
        ends(connection, "mail", ago)
        assert client.get("/types/mail.json").get_json()["succeeded_24h"] == succeeded(client)["mail"]
