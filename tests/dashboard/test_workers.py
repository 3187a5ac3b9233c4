"""Workers: who is there, how busy, how well; asking one to drain or to stop."""

from __future__ import annotations

from typing import Any

from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import AsRole, assert_fragments_match, assert_shown_as_text, items_of, one_line
from tests.support.factories import a_type, a_worker, claim, rows
from wakeboard.core.run_spec import NewRun
from wakeboard.queue.enqueue_many import enqueue_many
from wakeboard_dashboard.queries.workers import MOST_NAMED, MOST_RUNNING

JSON = {"Accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'/"


def listed(client: FlaskClient, query: str = "") -> dict[str, str]:
    return {each["id"]: each["state"] for each in items_of(client, f"/workers.json{query}")}


def stored(connection: Connection, id: str) -> dict[str, Any]:
    return rows(connection, "workers", "id = %s", id)[0]


def test_an_empty_list_says_how_to_start_one(client: FlaskClient) -> None:
    page = client.get("/workers").text
    assert "No worker is here" in page and "wakeboard tick" in page


def test_each_worker_has_its_state_and_trouble_comes_first(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "e-stopped", stopped_at="-1 minute")
    a_worker(connection, "d-idle", idle=True)
    a_worker(connection, "c-busy", running=3)
    a_worker(connection, "b-draining", running=3, drain_requested_at="-1 minute")
    a_worker(connection, "a-asked", stop_requested_at="-1 second")
    a_worker(connection, "z-silent", seen="-1 minute", stopping_at="-2 minutes")
    assert list(listed(client).items()) == [
        ("z-silent", "silent"),
        ("a-asked", "stopping"),
        ("b-draining", "draining"),
        ("c-busy", "busy"),
        ("d-idle", "idle"),
        ("e-stopped", "stopped"),
    ]
    page = client.get("/workers").text
    assert 'data-attention="1"' in page and 'max="4" value="3"' in one_line(page)


def test_a_worker_that_was_shown_before_tells_what_changed(as_role: AsRole, connection: Connection) -> None:
    a_worker(connection, "w1", job_types=["mail"])
    admin, viewer = as_role("admin"), as_role("viewer")
    assert 'formaction="/workers/w1/drain"' in admin.get("/workers").text
    assert "formaction" not in viewer.get("/workers").text.partition("<tbody>")[2].partition("</tbody>")[0]
    connection.execute("UPDATE wakeboard.workers SET job_types = '{report}', drain_requested_at = now()")
    page = admin.get("/workers").text
    assert 'formaction="/workers/w1/drain"' not in page and 'formaction="/workers/w1/undrain"' in page
    assert 'formaction="/workers/w1/stop"' in page
    assert "type=report" in page and "type=mail" not in page


def test_long_stopped_workers_are_listed_when_asked_for(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "now")
    a_worker(connection, "before", stopped_at="-2 hours", is_tick=True)
    assert listed(client) == {"now": "idle"}
    assert listed(client, "?state=stopped") == {"before": "stopped"}


def test_filters_narrow_the_list(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "one", hostname="db1", job_types=["report"])
    a_worker(connection, "two", hostname="web9", running=1)
    assert list(listed(client, "?q=DB1")) == ["one"]
    assert list(listed(client, "?type=mail")) == ["two"]
    assert list(listed(client, "?state=busy,silent")) == ["two"]
    assert client.get("/workers.json?state=broken").status_code == 400


def test_where_too_many_run_to_be_read_nobody_seems_to_do_nothing(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "busy", concurrency=4, running=4)
    a_worker(connection, "cut", concurrency=4, running=2)
    a_worker(connection, "bored", concurrency=4, running=0)
    for name in ("a_first", "z_last"):
        a_type(connection, name)
    enqueue_many(connection, [NewRun("a_first")] * (MOST_RUNNING + 1) + [NewRun("z_last")] * 2)
    claim(connection, ["a_first"], "busy", limit=MOST_RUNNING + 1)
    claim(connection, ["z_last"], "cut", limit=2)
    page = client.get("/workers").text
    lines = {
        name: page.split(f'id="worker-{name}"')[1].split("</tr>")[0] for name in ("busy", "cut", "bored")
    }
    assert f"and {MOST_RUNNING + 1 - MOST_NAMED}+ more" in lines["busy"]
    assert ">2 runs</a>" in lines["cut"]
    assert ">–</span>" in lines["bored"]


def test_live_workers_of_two_versions_are_told(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, version="0.1.0")
    assert "different versions" not in client.get("/workers").text
    a_worker(connection, version="0.0.9", stopped_at="-1 minute")
    assert "different versions" not in client.get("/workers").text
    a_worker(connection, version="0.0.9")
    assert "different versions:</strong> 0.0.9, 0.1.0" in client.get("/workers").text


def test_a_run_page_finds_its_worker_by_its_anchor(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w-7")
    assert '<tr id="worker-w-7"' in client.get("/workers").text


def test_names_of_others_are_shown_as_text(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, HOSTILE, name=HOSTILE + "n", hostname=HOSTILE, version=HOSTILE, job_types=[HOSTILE])
    a_worker(connection)
    assert_shown_as_text(client, "/workers")


def test_the_live_list_is_the_page(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection)
    assert_fragments_match(client, "/workers?state=idle")


def test_the_csv_has_a_line_per_worker(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w-7")
    head, line = client.get("/workers.csv").text.splitlines()
    assert head.startswith("id,state,name,") and line.startswith("w-7,idle,,host1,4321,")


def test_a_worker_is_asked_to_drain_and_then_says_so(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "w-7")
    assert "claim nothing new?" in client.get("/workers/w-7/drain").text
    answer = client.post("/workers/w-7/drain", data={"reason": "new kernel"}, headers=JSON)
    assert (answer.status_code, answer.get_json()["changed"]) == (202, True)
    assert listed(client) == {"w-7": "draining"}
    again = client.post("/workers/w-7/drain", headers=JSON)
    assert (again.status_code, again.get_json()["changed"]) == (200, False)
    (entry,) = rows(connection, "audit_log", "action = 'worker.drain' AND result = 'asked'")
    assert (entry["target_id"], entry["reason"]) == ("w-7", "new kernel")


def test_a_drain_is_taken_back_as_long_as_the_worker_does_not_stop(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "w-7", drain_requested_at="-1 minute")
    answer = client.post("/workers/w-7/undrain", data={"reason": "kernel stays"}, headers=JSON)
    assert (answer.status_code, answer.get_json()["changed"]) == (202, True)
    assert listed(client) == {"w-7": "idle"}
    again = client.post("/workers/w-7/undrain", headers=JSON)
    assert (again.status_code, again.get_json()["changed"]) == (200, False)
    (entry,) = rows(connection, "audit_log", "action = 'worker.undrain' AND result = 'asked'")
    assert (entry["target_id"], entry["reason"]) == ("w-7", "kernel stays")
    for moment in ("stop_requested_at", "stopping_at", "stopped_at"):
        ending = a_worker(connection, drain_requested_at="-1 minute", **{moment: "-1 second"})
        refused = client.post(f"/workers/{ending}/undrain", headers=JSON)
        assert refused.status_code == 409 and "start another one" in refused.get_json()["message"]
        assert stored(connection, ending)["drain_requested_at"] is not None
    assert client.post("/workers/none/undrain", headers=JSON).status_code == 404


def test_stopping_a_worker_asks_first(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, HOSTILE)
    page = client.get("/workers").text
    address = page.split('formaction="/workers/')[2].split('"')[0]
    assert "Stop worker" in client.get(f"/workers/{address}").text
    back = client.post(f"/workers/{address}", data={"next": "/workers"})
    assert (back.status_code, back.location) == (303, "/workers")
    assert stored(connection, HOSTILE)["stop_requested_at"] is not None


def test_who_cannot_hear_is_not_asked(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, seen="-1 hour")
    page = client.get("/workers").text
    assert page.count("It hears nothing: look at process 4321 on host1") == 2


def test_an_unknown_worker_is_a_sentence(client: FlaskClient) -> None:
    answer = client.post("/workers/none/stop", headers=JSON)
    assert answer.status_code == 404 and "There is no worker" in answer.get_json()["message"]


def test_stopping_takes_an_admin_and_draining_an_operator(as_role: AsRole, connection: Connection) -> None:
    a_worker(connection, "w-7")
    viewer, operator = as_role("viewer"), as_role("operator")
    assert viewer.post("/workers/w-7/drain").status_code == 403
    assert operator.get("/workers/w-7/stop").status_code == 403
    assert operator.post("/workers/w-7/stop").status_code == 403
    assert operator.post("/workers/w-7/drain", headers=JSON).status_code == 202
    assert stored(connection, "w-7")["stop_requested_at"] is None
