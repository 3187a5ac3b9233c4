"""Leases: whose are in danger, why, and that only those can be taken away."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from flask.testing import FlaskClient

from tests.conftest import Connection
from tests.dashboard.conftest import assert_fragments_match, assert_shown_as_text, items_of
from tests.support.factories import (
    a_run,
    a_type,
    a_worker,
    an_attempt,
    end_lease,
    from_now,
    rows,
    status,
)
from tests.support.processes import ROOT
from wakeboard.core.leases import STATES

JSON = {"Accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'"


def states(client: FlaskClient, query: str = "") -> dict[int, str]:
    return {item["id"]: item["state"] for item in items_of(client, f"/leases.json{query}")}


def test_an_empty_list_says_what_a_lease_is(client: FlaskClient) -> None:
    page = client.get("/leases").text
    assert "Nothing runs now" in page and "renews its leases at every heartbeat" in page


def test_leases_in_danger_come_first(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "alive")
    a_worker(connection, "gone", seen="-1 hour")
    renewed = a_run(connection, "running", locked_by="alive")
    a_worker(connection, "leaving", stopping_at="-1 second")
    leaving = a_run(connection, "running", locked_by="leaving")
    asked = a_run(connection, "running", locked_by="alive", cancel_requested_at="-1 second")
    silent = a_run(connection, "running", locked_by="gone")
    ended = a_run(connection, "running", locked_by="alive", locked_until="-1 minute")
    a_run(connection, "succeeded")
    assert list(states(client).items()) == [
        (ended, "ended"),
        (silent, "silent"),
        (asked, "cancelling"),
        (leaving, "stopping"),
        (renewed, "renewed"),
    ]
    assert 'data-attention="2"' in client.get("/leases").text


def test_of_leases_that_stand_alike_the_longest_running_comes_first(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "alive")
    starts = ("-2 minutes", "-3 hours", "-1 second", "-3 hours")
    second, first, last, twin = (
        a_run(connection, "running", locked_by="alive", started_at=started) for started in starts
    )
    connection.execute(
        "UPDATE wakeboard.job_runs AS r SET started_at = other.started_at "
        "FROM wakeboard.job_runs AS other WHERE other.id = %s AND r.id = %s",
        (first, twin),
    )
    assert list(states(client)) == [first, twin, second, last]
    pages = [client.get("/leases.json?limit=1").get_json()]
    while pages[-1]["next"]:
        pages.append(client.get(f"/leases.json?limit=1&cursor={pages[-1]['next']}").get_json())
    assert [one["id"] for page in pages for one in page["items"]] == [first, twin, second, last]


def item(client: FlaskClient, run_id: int) -> dict[str, Any]:
    (found,) = [each for each in items_of(client, "/leases.json") if each["id"] == run_id]
    return dict(found)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_the_age_of_a_renewal_is_known_from_the_end_of_the_lease(
    client: FlaskClient, connection: Connection
) -> None:
    a_type(connection, "slow", lease_seconds=120)
    a_worker(connection, "brief", lease_seconds=12, heartbeat_seconds=4)
    a_worker(connection, "old", lease_seconds=None, heartbeat_seconds=5)
    lengths = {
        a_run(connection, "running", locked_by="brief", locked_until="9 seconds"): (12, 3),
        a_run(connection, "running", job_type="slow", locked_by="brief", locked_until="80 seconds"): (
            120,
            40,
        ),
        a_run(connection, "running", locked_by="old", locked_until="10 seconds"): (15, 5),
        a_run(connection, "running", locked_by="nobody", locked_until="20 seconds"): (30, 10),
    }
    body = client.get("/leases.json").get_json()
    for each in body["items"]:
        seconds, age_seconds = lengths[each["id"]]
        assert each["lease_seconds"] == seconds
        age_found = (moment(body["as_of"]) - moment(each["renewed_at"])).total_seconds()
        assert abs(age_found - age_seconds) < 2, each


def test_a_lease_in_danger_says_who_takes_it_over_and_by_when(
    client: FlaskClient, connection: Connection
) -> None:
    a_worker(connection, "gone", seen="-1 hour", lease_seconds=30)
    run = a_run(connection, "running", locked_by="gone", locked_until="20 seconds")
    page = client.get("/leases").text
    assert "No other worker is alive: start one" in page
    assert "at the latest" not in page
    a_worker(connection, "one")
    assert "The other live worker takes it over" in client.get("/leases").text
    a_worker(connection, "two")
    a_worker(connection, "ended", stopped_at="-1 second")
    page = client.get("/leases").text
    assert "The first of 2 other live workers takes it over" in page
    assert "taken over at the latest" in page
    found = item(client, run)
    assert found["takers"] == 2
    assert (moment(found["takeover_at"]) - moment(found["locked_until"])).total_seconds() == 2


def test_the_page_of_the_run_says_the_same(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "alive", lease_seconds=30)
    a_worker(connection, "gone", seen="-1 hour")
    fine = a_run(connection, "running", locked_by="alive", locked_until="25 seconds")
    silent = a_run(connection, "running", locked_by="gone", locked_until="25 seconds")
    page = client.get(f"/runs/{fine}").text
    assert "Lease: renewed, renewed" in page
    assert "takes it over" not in page
    page = client.get(f"/runs/{silent}").text
    assert "The other live worker takes it over" in page
    assert "Lease: worker silent, renewed" in page
    for run in (fine, silent):
        on_its_page = client.get(f"/runs/{run}.json").get_json()["lease"]
        in_the_list = item(client, run)
        assert on_its_page.pop("renewed_at") and on_its_page == {
            name: in_the_list[name] for name in on_its_page
        }
    assert client.get(f"/runs/{a_run(connection)}.json").get_json()["lease"] is None


def test_late_answers_that_were_refused_are_counted_and_lead_to_their_attempts(
    client: FlaskClient, connection: Connection
) -> None:
    assert "refused in 24 h: 0" in client.get("/leases").text
    run = a_run(connection, "succeeded", job_type=HOSTILE, attempts=2, lease_epoch=3)
    connection.execute("DELETE FROM wakeboard.job_attempts WHERE run_id = %s", (run,))
    lost = {"outcome": "lost", "error_code": "lease_lost", "error": "gone", "worker_id": HOSTILE}
    an_attempt(
        connection, run, **lost, lease_epoch=1, refused_at=from_now("-1 hour"), refused_outcome="succeeded"
    )
    an_attempt(
        connection,
        run,
        **lost,
        attempt=2,
        lease_epoch=2,
        refused_at=from_now("-25 hours"),
        refused_outcome="failed",
    )
    page = client.get("/leases").text
    assert "refused in 24 h: 1" in page
    assert f'href="/runs/{run}#attempt-1"' in page
    assert "#attempt-2" not in page
    body = client.get("/leases.json").get_json()
    assert (body["refused_24h"], [one["run_id"] for one in body["refused"]]) == (1, [run])
    assert "wakeboard_refused_answers_24h 1.0" in client.get("/metrics").text
    own = client.get(f"/runs/{run}").text
    assert own.count("too late: the answer was refused") == 2
    assert 'id="attempt-1"' in own
    assert_fragments_match(client, "/leases")
    assert_shown_as_text(client, "/leases")


def test_every_state_is_explained_on_the_page_and_in_the_docs(client: FlaskClient) -> None:
    page = client.get("/leases").text
    docs = (ROOT / "docs" / "operating.md").read_text()
    for state in STATES:
        assert f"| `{state.name}` |" in docs
        assert f"<dt>{state.title}</dt>" in page
        assert state.meaning in page


def test_filters_narrow_the_list(client: FlaskClient, connection: Connection) -> None:
    a_worker(connection, "alive")
    mine = a_run(connection, "running", locked_by="alive", job_type="report")
    other = a_run(connection, "running", locked_by="nobody")
    assert list(states(client, "?type=report")) == [mine]
    assert list(states(client, "?worker=alive")) == [mine]
    assert list(states(client, "?state=silent,ended")) == [other]
    assert "No lease matches" in client.get("/leases?type=none").text


def test_an_unknown_state_is_refused_in_a_sentence(client: FlaskClient) -> None:
    answer = client.get("/leases.json?state=lost")
    assert answer.status_code == 400
    assert "ended, silent, cancelling, stopping, renewed" in answer.text


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
    head, line = client.get("/leases.csv").text.splitlines()
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
    page = client.get("/leases").text
    button = page.split(f'id="release-{run}"')[1].split(">")[0]
    assert "disabled" in button and "cancel the run instead" in button


def test_the_confirm_page_works_without_a_script(client: FlaskClient, connection: Connection) -> None:
    run = a_run(connection, "running")
    end_lease(connection, run)
    assert f"Take run {run} from its worker?" in client.get(f"/leases/{run}/release").text
    answer = client.post(f"/leases/{run}/release", data={"next": "/leases"})
    assert (answer.status_code, answer.location) == (303, "/leases")
