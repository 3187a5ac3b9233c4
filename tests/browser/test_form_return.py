"""A form whose act was not done: the same question again, with what was typed, for the same person alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Connection
from tests.dashboard.test_effects import an_effect
from tests.support.browsers import Dashboard, end_sessions, follow, serving, sign_in
from tests.support.factories import a_definition, a_run, a_type, rows
from tests.support.postgres.wire_proxy import Middleman, Way, between

pytestmark = pytest.mark.browser


def late(page: Page, connection: Connection, button: str) -> None:
    """Send the form of ``page`` after everybody's session has ended."""
    end_sessions(connection)
    follow(page, page.get_by_role("button", name=button, exact=True))
    expect(page.locator("h1")).to_have_text("You were signed out")
    expect(page.locator("main")).to_contain_text("Nothing was done.")
    expect(page.locator("[data-kept]")).to_contain_text("is in the form again for anna")
    expect(page.locator("[data-lost]")).to_have_count(page.locator("[data-lost][hidden]").count())


def come_back(page: Page, connection: Connection, name: str = "anna") -> None:
    page.get_by_role("link", name="Sign in and go on").click()
    sign_in(page, connection, name)


def is_kept(page: Page) -> bool:
    return (
        page.evaluate("Object.keys(sessionStorage).some(name => name.startsWith('wakeboard-form'))") is True
    )


def test_a_schedule_is_edited_on_where_the_session_ended(
    page: Page, connection: Connection, complaints: list[str]
) -> None:
    a_definition(connection, "nightly", schedule="30 2 * * *")
    page.goto("/schedules/nightly/edit")
    page.fill("[name=schedule]", "15 4 * * *")
    page.fill("[name=payload]", '{\n  "path": "/srv"\n}')
    page.select_option("[name=overlap]", "wait")
    page.fill("[name=reason]", "the shop opens earlier")
    version = page.input_value("[name=version]")
    late(page, connection, "Save")
    # Somebody else saves meanwhile.
    connection.execute("UPDATE wakeboard.job_definitions SET priority = 4, updated_at = now()")
    come_back(page, connection)
    expect(page).to_have_url(re.compile(r"/schedules/nightly/edit\?"))
    expect(page.locator("[name=schedule]")).to_have_value("15 4 * * *")
    expect(page.locator("[name=payload]")).to_have_value('{\n  "path": "/srv"\n}')
    expect(page.locator("[name=overlap]")).to_have_value("wait")
    expect(page.locator("[name=reason]")).to_have_value("the shop opens earlier")
    expect(page.locator("[name=version]")).to_have_value(version)
    expect(page.locator("#toasts")).to_contain_text("This form is as you sent it: look it over")
    assert not is_kept(page)
    assert rows(connection, "job_definitions")[0]["schedule"] == "30 2 * * *"
    follow(page, page.get_by_role("button", name="Save", exact=True))
    expect(page.locator("main [role=alert]")).to_contain_text("saving again replaces it")
    follow(page, page.get_by_role("button", name="Save", exact=True))
    assert rows(connection, "job_definitions")[0]["schedule"] == "15 4 * * *"
    assert not is_kept(page)
    assert [text for text in complaints if "401" not in text and "409" not in text] == []


def of_operation(connection: Connection) -> str:
    for _ in range(2):
        a_run(connection, "dead", job_type="mail")
    return "/runs/bulk/retry?status=dead&type=mail"


def of_selection(connection: Connection) -> str:
    return f"/runs/bulk/cancel?run={a_run(connection, 'dead')}&run={a_run(connection, 'queued')}"


def of_rule(connection: Connection) -> str:
    return f"/alerts/{rows(connection, 'alert_rules', 'kind = %s', 'dead_runs')[0]['id']}/edit"


def of_type(connection: Connection) -> str:
    return f"/types/{a_type(connection, 'mail')}/pause"


FORMS: dict[str, tuple[Callable[[Connection], str], str, dict[str, str]]] = {
    "an operation": (of_operation, "Retry 2 runs", {"per_minute": "7", "stop_above_percent": "12"}),
    "chosen runs": (of_selection, "Cancel", {"per_minute": "3"}),
    "a new run": (
        lambda connection: "/runs/enqueue?type=mail",
        "Enqueue",
        {"type": "letter", "payload": '{"to": 812}', "key": "k-1", "at": "2031-01-02T03:04"},
    ),
    "a view": (
        lambda connection: "/runs/views/save?query=status%3Ddead%26type%3Dmail",
        "Save view",
        {"name": "mine"},
    ),
    "an alert rule": (of_rule, "Edit", {"count": "77"}),
    "a pause": (of_type, "Pause", {"until_at": "2031-01-02T03:04"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_field_of_a_form_is_there_again(page: Page, connection: Connection, form: str) -> None:
    address, button, typed = FORMS[form][0](connection), *FORMS[form][1:]
    page.goto(address)
    for folded in page.locator("main details").all():
        folded.locator("summary").click()
    typed = {**typed, "reason": "a quiet hour & more"}
    for name, text in typed.items():
        page.fill(f"main [name={name}]", text)
    before = page.locator("main form[method=post] input[type=hidden]").count()
    late(page, connection, button)
    come_back(page, connection)
    path, _, query = address.partition("?")
    expect(page).to_have_url(re.compile(re.escape(path)))
    for part in query.split("&"):
        assert part in page.url
    for name, text in typed.items():
        expect(page.locator(f"main [name={name}]")).to_have_value(text)
        expect(page.locator(f"main [name={name}]")).to_be_visible()
    expect(page.locator("#toasts")).to_contain_text("This form is as you sent it")
    assert page.locator("main form[method=post] input[type=hidden]").count() == before
    assert rows(connection, "audit_log", "actor = 'anna' AND action <> 'login'") == []
    page.reload()
    expect(page.locator("#toasts")).to_be_empty()


def test_a_choice_is_chosen_again(page: Page, connection: Connection) -> None:
    run_id = a_run(connection, "dead")
    effect = an_effect(connection, run_id)
    page.goto(f"/effects/{effect}/settle")
    page.get_by_label("It did not").check()
    late(page, connection, "Settle")
    come_back(page, connection)
    expect(page.get_by_label("It did not")).to_be_checked()
    expect(page.get_by_label("It happened")).not_to_be_checked()
    assert rows(connection, "effects")[0]["status"] == "started"


def test_nobody_else_gets_what_was_typed(page: Page, connection: Connection) -> None:
    page.goto("/runs/enqueue?type=mail")
    page.fill("[name=payload]", '{"for": "anna alone"}')
    page.fill("[name=reason]", "hers alone")
    late(page, connection, "Enqueue")
    come_back(page, connection, "ben")
    expect(page).to_have_url(re.compile(r"/runs/enqueue\?type=mail"))
    assert "hers" not in page.url and not is_kept(page)
    for name, text in {"type": "mail", "payload": "", "reason": ""}.items():
        expect(page.locator(f"[name={name}]")).to_have_value(text)
    end_sessions(connection)
    page.goto("/runs/enqueue?type=mail")
    sign_in(page, connection)
    expect(page.locator("[name=payload]")).to_have_value("")


def test_who_signs_out_leaves_nothing_typed_behind(page: Page, connection: Connection) -> None:
    page.goto("/runs/enqueue")
    page.fill("[name=type]", "mail")
    page.fill("[name=payload]", '{"for": "anna alone"}')
    late(page, connection, "Enqueue")
    assert is_kept(page)
    page.goto("/login")
    sign_in(page, connection)
    expect(page.locator("h1")).to_have_text("Overview")
    assert is_kept(page)
    page.locator("#account summary").click()
    follow(page, page.get_by_role("button", name="Sign out"))
    assert not is_kept(page)


def test_nothing_typed_stays_after_a_form_has_arrived(page: Page, connection: Connection) -> None:
    a_type(connection, "mail")
    page.goto("/runs/enqueue")
    page.fill("[name=type]", "mail")
    page.fill("[name=payload]", '{"to": 812}')
    follow(page, page.get_by_role("button", name="Enqueue", exact=True))
    expect(page.locator("#toasts .done")).to_be_visible()
    assert not is_kept(page)


@pytest.fixture
def middleman(database: str) -> Iterator[Middleman]:
    with between(database) as found:
        yield found


@pytest.fixture
def dashboard(middleman: Middleman) -> Iterator[Dashboard]:
    """The dashboard, with a middleman before its database."""
    with serving(middleman.url) as served:
        yield served


def edited(page: Page, connection: Connection) -> None:
    """Be on the form of a schedule, with something typed into it."""
    a_definition(connection, "nightly", schedule="30 2 * * *")
    page.goto("/schedules/nightly/edit")
    page.fill("[name=schedule]", "15 4 * * *")
    page.fill("[name=reason]", "the shop opens earlier")


def test_what_a_database_that_is_away_refused_is_in_its_form_again(
    page: Page, connection: Connection, middleman: Middleman
) -> None:
    edited(page, connection)
    middleman.refuse()
    follow(page, page.get_by_role("button", name="Save", exact=True))
    expect(page.locator("main .sentence")).to_have_text("The database does not answer. Nothing was done.")
    expect(page.locator("[data-kept]")).to_contain_text("is in the form again when you go back to it")
    # Too early: the form is a page of the database as well.
    follow(page, page.get_by_role("link", name="Back to the form"))
    expect(page.locator("main")).to_contain_text("It is asked again with each request.")
    middleman.heal()
    page.reload()
    expect(page.locator("[name=schedule]")).to_have_value("15 4 * * *")
    expect(page.locator("[name=reason]")).to_have_value("the shop opens earlier")
    assert not is_kept(page)
    follow(page, page.get_by_role("button", name="Save", exact=True))
    expect(page).to_have_url(re.compile("/schedules/nightly$"))
    assert rows(connection, "job_definitions")[0]["schedule"] == "15 4 * * *"


def test_a_form_that_is_sent_once_more_by_loading_its_page_again_is_forgotten_when_it_is_done(
    page: Page, connection: Connection, middleman: Middleman
) -> None:
    edited(page, connection)
    middleman.refuse()
    follow(page, page.get_by_role("button", name="Save", exact=True))
    page.reload()
    expect(page.locator("[data-kept]")).to_be_visible()
    assert is_kept(page)
    middleman.heal()
    page.reload()
    expect(page).to_have_url(re.compile("/schedules/nightly$"))
    assert rows(connection, "job_definitions")[0]["schedule"] == "15 4 * * *"
    assert not is_kept(page)


def test_what_may_have_been_done_is_looked_at_before_it_is_sent_again(
    page: Page, connection: Connection, middleman: Middleman
) -> None:
    edited(page, connection)
    acts = "UPDATE wakeboard.job_definitions"
    middleman.cuts = lambda _name, statement: Way.DURING if acts in statement else None
    follow(page, page.get_by_role("button", name="Save", exact=True))
    expect(page.locator("main .sentence")).to_contain_text("It is not known whether it was done")
    middleman.heal()
    follow(page, page.get_by_role("link", name="Audit log"))
    expect(page).to_have_url(re.compile("/audit$"))
    page.goto("/schedules/nightly/edit?next=%2Fschedules%2Fnightly")
    expect(page.locator("[name=schedule]")).to_have_value("15 4 * * *")
    expect(page.locator("#toasts")).to_contain_text("This form is as you sent it")


def test_a_toast_says_whether_a_verb_was_done(
    page: Page, connection: Connection, middleman: Middleman
) -> None:
    run_id = a_run(connection, "dead")
    page.goto(f"/runs/{run_id}")
    page.keyboard.press("p")
    middleman.refuse()
    page.locator("[data-verbs]").get_by_role("button", name="Retry").first.click()
    expect(page.locator("#toasts .refused")).to_contain_text(
        "The database does not answer. Nothing was done."
    )
