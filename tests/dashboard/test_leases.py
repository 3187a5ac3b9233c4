"""Leases: whose are in danger, why, and that only those can be taken away."""

from __future__ import annotations

from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, assert_fragments_match, assert_shown_as_text
from tests.factories import a_run, a_worker, age, end_lease, rows, status

JSON = {"Accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"


def states(client: FlaskClient, query: str = "") -> dict[int, str]:
    return {item["id"]: item["state"] for item in client.get(f"/leases.json{query}").get_json()["items"]}


def test_an_empty_list_says_what_a_lease_is(client: FlaskClient) -> None:
    page = client.get("/leases").get_data(as_text=True)
    assert "Nothing runs now" in page and "renews its leases at every heartbeat" in page


def test_leases_in_danger_come_first(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "alive")
    a_worker(connection, "gone", seen="-1 hour")
    renewed = a_run(connection, "running", locked_by="alive")
    asked = a_run(connection, "running", locked_by="alive", cancel_requested_at="-1 second")
    silent = a_run(connection, "running", locked_by="gone")
    ended = a_run(connection, "running", locked_by="alive", locked_until="-1 minute")
    a_run(connection, "succeeded")
    assert list(states(client).items()) == [
        (ended, "ended"),
        (silent, "silent"),
        (asked, "stopping"),
        (renewed, "renewed"),
    ]
    assert 'data-attention="2"' in client.get("/leases").get_data(as_text=True)


def test_filters_narrow_the_list(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "alive")
    mine = a_run(connection, "running", locked_by="alive", job_type="report")
    other = a_run(connection, "running", locked_by="nobody")
    assert list(states(client, "?type=report")) == [mine]
    assert list(states(client, "?worker=alive")) == [mine]
    assert list(states(client, "?state=silent,ended")) == [other]
    assert "No lease matches" in client.get("/leases?type=none").get_data(as_text=True)


def test_an_unknown_state_is_refused_in_a_sentence(client: FlaskClient) -> None:
    answer = client.get("/leases.json?state=lost")
    assert answer.status_code == 400
    assert "ended, silent, stopping, renewed" in answer.get_data(as_text=True)


def test_pages_of_leases_follow_each_other_across_states(client: FlaskClient, connection: Connection) -> None:
    made = {
        a_run(connection, "running", locked_until=f"{seconds} seconds") for seconds in (-3, -2, 30, 31, 32)
    }
    seen: list[int] = []
    query = "?limit=2"
    while True:
        body = client.get(f"/leases.json{query}").get_json()
        seen += [item["id"] for item in body["items"]]
        if body["next"] is None:
            break
        query = f"?limit=2&cursor={body['next']}"
    assert len(seen) == 5 and set(seen) == made


def test_names_of_others_are_shown_as_text(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, HOSTILE, name=HOSTILE, hostname=HOSTILE)
    a_run(connection, "running", job_type=HOSTILE, locked_by=HOSTILE)
    assert_shown_as_text(client, "/leases")


def test_the_live_list_is_the_page(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "alive")
    a_run(connection, "running", locked_by="alive")
    assert_fragments_match(client, "/leases")
    assert_fragments_match(client, "/leases?state=renewed&type=mail")


def test_the_csv_has_a_line_per_lease(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "running")
    head, line = client.get("/leases.csv").get_data(as_text=True).splitlines()
    assert head.startswith("id,state,job_type,") and line.startswith(f"{run},silent,mail,")


def test_the_lease_of_a_silent_worker_can_be_taken(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "gone", seen="-1 hour")
    run = a_run(connection, "running", locked_by="gone")
    answer = client.post(f"/leases/{run}/release", json={"reason": "its machine is off"}, headers=JSON)
    assert answer.status_code == 200 and answer.get_json()["changed"] is True
    assert status(connection, run) == "failed"
    (entry,) = rows(connection, "audit_log", "action = 'lease.release'")
    assert (entry["target_id"], entry["reason"]) == (str(run), "its machine is off")


def test_the_lease_of_a_live_worker_stays(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "alive")
    run = a_run(connection, "running", locked_by="alive")
    answer = client.post(f"/leases/{run}/release", headers=JSON)
    assert answer.status_code == 409 and "alive" in answer.get_json()["message"]
    assert status(connection, run) == "running"
    page = client.get("/leases").get_data(as_text=True)
    button = page.split(f'id="release-{run}"')[1].split(">")[0]
    assert "disabled" in button and "cancel the run instead" in button


def test_the_confirm_page_works_without_a_script(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "running")
    end_lease(connection, run)
    assert f"Take run {run} from its worker?" in client.get(f"/leases/{run}/release").get_data(as_text=True)
    answer = client.post(f"/leases/{run}/release", data={"next": "/leases"})
    assert (answer.status_code, answer.location) == (303, "/leases")


def test_a_viewer_looks_and_takes_nothing(as_role: AsRole, connection: Connection) -> None:
    run = a_run(connection, "running", locked_until="-1 minute")
    age(connection, run, "1 minute")
    viewer = as_role("viewer")
    assert "Needs the role operator" in viewer.get("/leases").get_data(as_text=True)
    assert viewer.get(f"/leases/{run}/release").status_code == 403
    assert viewer.post(f"/leases/{run}/release").status_code == 403
    assert status(connection, run) == "running"
