"""Settings: where each comes from, and what a wrong one says."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from wakeboard.config.settings import Settings, SettingsError, default_data_dir, find_misspelt, mask_password


def load(**variables: str) -> Settings:
    return Settings.load(environ={f"WAKEBOARD_{name.upper()}": value for name, value in variables.items()})


def test_nothing_set_is_enough() -> None:
    settings = load()
    assert settings.database_url is None
    assert (settings.bind, settings.lease_seconds, settings.heartbeat_seconds) == ("127.0.0.1:8080", 30, 10)
    assert settings.concurrency >= 2
    assert settings.data_dir == default_data_dir()
    assert not settings.allow_commands


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    settings = Settings.load({"poll_seconds": 7, "bind": None}, {"WAKEBOARD_POLL_SECONDS": "9"})
    assert settings.poll_seconds == 7
    origins = {row["name"]: row["origin"] for row in settings.rows()}
    assert origins["WAKEBOARD_POLL_SECONDS"] == "flag"
    assert origins["WAKEBOARD_BIND"] == "default"
    assert {row["origin"] for row in load(bind="[::1]:80").rows()} == {"default", "environment"}


def test_an_empty_variable_is_not_set() -> None:
    assert load(poll_seconds="").poll_seconds == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_seconds", "0"),
        ("lease_seconds", "nan"),
        ("lease_seconds", "inf"),
        ("lease_seconds", "30s"),
        ("poll_seconds", "-1"),
        ("shutdown_seconds", "1e9"),
        ("kill_seconds", "five"),
        ("concurrency", "0"),
        ("concurrency", "2.5"),
        ("payload_bytes", "1"),
        ("keep_succeeded_days", "-1"),
        ("keep_dead_days", "36501"),
        ("keep_audit_days", "a year"),
        ("payload_bytes", "1048577"),
        ("timezone", "Europe/Atlantis"),
        ("timezone", "../../etc/passwd"),
        ("bind", "8080"),
        ("bind", ":8080"),
        ("bind", "127.0.0.1:65536"),
        ("bind", "127.0.0.1:http"),
        ("hosts", "https://jobs.example.org"),
        ("hosts", "jobs.example.org:8080"),
        ("hosts", "jobs.example.org,"),
        ("behind_tls_proxy", "nginx"),
        ("log_format", "xml"),
        ("log_level", "debug"),
        ("log_moves", "some"),
        ("log_moves", "1/0"),
        ("log_moves", "2/3"),
        ("log_moves", "=all"),
        ("log_moves", "mail=1/x"),
        ("log_moves", "all,"),
        ("app", "./jobs"),
        ("app", "shop/jobs"),
        ("app", ".jobs"),
        ("app", "shop..jobs"),
        ("allow_commands", "maybe"),
        ("heartbeat_url", "file:///etc/passwd"),
        ("heartbeat_seconds", "31"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        load(**{name: value})
    assert len(str(wrong.value).splitlines()) == 1
    assert f"WAKEBOARD_{name.upper()} is " in str(wrong.value)
    assert "allowed: " in str(wrong.value)


@pytest.mark.parametrize(
    ("app", "meant"),
    [
        *(
            (text, "jobs")
            for text in ("jobs.py", "jobs:app", "jobs ", " jobs", "jobs.py:app", "./jobs", "jobs/")
        ),
        *(
            (text, "jobs")
            for text in (".jobs", "jobs.", "./jobs.py", "../jobs.py", "/srv/shop/jobs.py", "jobs:")
        ),
        *((text, "shop.jobs") for text in ("shop/jobs", "shop/jobs.py", "./shop/jobs:app", "shop.jobs.py")),
        *((text, "shop.jobs") for text in ("shop\\jobs.py", "shop/jobs/__init__.py")),
        *(
            (text, None)
            for text in ("my jobs", "2fast", "jobs,shop", "shop..jobs", ":", "jobs\n\njobs", "python -m jobs")
        ),
    ],
)
@pytest.mark.parametrize("is_flag", [True, False])
def test_what_names_no_module_of_handlers_says_which_was_meant(
    app: str, meant: str | None, is_flag: bool
) -> None:
    with pytest.raises(SettingsError) as wrong:
        Settings.load({"app": app} if is_flag else {}, {} if is_flag else {"WAKEBOARD_APP": app})
    said = str(wrong.value)
    assert said.startswith(
        f"{'--app' if is_flag else 'WAKEBOARD_APP'} is {app!r}; allowed: the name of a Python"
    )
    assert said.endswith(f"jobs or shop.jobs. Did you mean {meant}?" if meant else "jobs or shop.jobs.")


@pytest.mark.parametrize("app", ["jobs", "shop.jobs", "shop.my_jobs2", "my-jobs", "büro.jobs", "jobs.python"])
def test_names_of_modules_are_taken_as_they_are(app: str) -> None:
    assert load(app=app).app == app


def test_every_wrong_value_is_told_at_once() -> None:
    with pytest.raises(SettingsError) as wrong:
        load(lease_seconds="x", concurrency="y", bind="z")
    assert len(str(wrong.value).splitlines()) == 3


@pytest.mark.parametrize("password", ["s3c@ret", "s3c/ret", "s3c:r@t", "a@b@c"])
def test_a_password_that_breaks_its_url_is_refused_unseen_and_with_the_way_to_write_it(password: str) -> None:
    with pytest.raises(SettingsError, match=r"DATABASE_URL is \*\*\*; .* %40 %3A %2F") as refused:
        load(database_url=f"postgresql://wakeboard:{password}@db1/app")
    assert "s3c" not in str(refused.value)


def test_a_misspelt_variable_is_told_with_the_one_that_is_meant() -> None:
    given = {"WAKEBOARD_DATABSE_URL": "x", "WAKEBOARD_TIME_ZONE": "UTC", "WAKEBOARD_BIND": "127.0.0.1:0"}
    assert find_misspelt(given) == [
        "WAKEBOARD_DATABSE_URL is no setting, so nobody reads it. Did you mean WAKEBOARD_DATABASE_URL?",
        "WAKEBOARD_TIME_ZONE is no setting, so nobody reads it. Did you mean WAKEBOARD_TIMEZONE?",
    ]


def test_a_variable_of_somebodys_own_and_those_of_a_commands_run_are_left_alone() -> None:
    own = [
        "WAKEBOARD_TOKEN",
        "WAKEBOARD_RUN_ID",
        "WAKEBOARD_ATTEMPT",
        "WAKEBOARD_KEY",
        "WAKEBOARD_SCHEDULED_FOR",
    ]
    assert find_misspelt(dict.fromkeys([*own, "WAKEBOARD_TEST_DATABASE_URL", "PATH"], "x")) == []


def test_a_wrong_flag_is_named_as_a_flag() -> None:
    with pytest.raises(SettingsError, match=r"--poll-seconds is 'often'; allowed: seconds from 0\.05 to"):
        Settings.load({"poll_seconds": "often"}, {})


@pytest.mark.parametrize(
    ("shutdown", "given", "seconds"),
    [("25", None, 2), ("1", None, 1), ("0", None, 0), ("25", "25", 25), ("25", "0", 0), ("1", "1.5", None)],
)
def test_the_end_of_a_process_fits_into_the_shutdown_time(
    shutdown: str, given: str | None, seconds: float | None
) -> None:
    values = {"shutdown_seconds": shutdown} | ({} if given is None else {"child_exit_seconds": given})
    if seconds is not None:
        assert load(**values).child_exit_seconds == seconds
        return
    with pytest.raises(SettingsError, match=r"WAKEBOARD_CHILD_EXIT_SECONDS is 1\.5; allowed: from 0 to 1"):
        load(**values)


@pytest.mark.parametrize(
    ("heartbeat", "fits"), [("7.5", True), ("15", True), ("7.4", False), ("15.1", False)]
)
def test_a_heartbeat_is_a_quarter_to_a_half_of_the_lease(heartbeat: str, fits: bool) -> None:
    if fits:
        assert load(heartbeat_seconds=heartbeat).heartbeat_seconds == float(heartbeat)
        return
    with pytest.raises(
        SettingsError, match=r"allowed: from 7\.5 to 15, a quarter to a half of the lease of 30"
    ):
        load(heartbeat_seconds=heartbeat)


def test_a_password_is_never_shown() -> None:
    settings = load(database_url="postgresql://u:s3cret@db/w", heartbeat_url="https://hc.example/s3cret")
    assert "s3cret" not in str(settings.rows())
    with pytest.raises(SettingsError) as wrong:
        load(database_url="postgresql://u:s3cret@db/w?nonsense=1")
    assert "s3cret" not in str(wrong.value)
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://jobs:hunter2@db.example.org:5433/jobs", "postgresql://jobs:***@db.example.org:5433/jobs"),
        ("postgresql://jobs@db.example.org/jobs", "postgresql://jobs@db.example.org/jobs"),
        ("postgresql://db.example.org/jobs?password=hunter2&sslmode=require",
         "postgresql://db.example.org/jobs?password=***&sslmode=require"),
        ("postgresql:///jobs?host=/run/postgresql", "postgresql:///jobs?host=/run/postgresql"),
        ("postgresql://jobs:hun/ter2@db.example.org/jobs", "***"),
        ("postgresql://jobs:hun?ter2@db.example.org/jobs", "***"),
        ("host=db.example.org password=hunter2", "***"),
        ("postgresql://jobs:hunter2@[db/jobs", "***"),
    ],
)  # fmt: skip
def test_of_an_address_all_but_the_password_is_told(url: str, told: str) -> None:
    assert mask_password(url) == told


@pytest.mark.parametrize(
    "url", ["postgresql://a:1,b:2/w?target_session_attrs=any", "host=/tmp dbname='my db'", "postgres://u@/w"]
)
def test_any_libpq_address_will_do(url: str) -> None:
    assert load(database_url=url).database_url == url


def test_a_key_is_nothing_without_its_certificate() -> None:
    with pytest.raises(SettingsError, match="CERTIFICATE_KEY is set and WAKEBOARD_CERTIFICATE is not"):
        load(certificate_key="/etc/wakeboard/key.pem")


def test_settings_go_to_a_process_that_we_start_as_they_are() -> None:
    settings = load(
        database_url="host=/tmp",
        allow_commands="on",
        data_dir="/srv/w",
        concurrency="3",
        hosts="jobs.example.org, [2001:DB8::7]",
        behind_tls_proxy="yes",
        certificate="/etc/wakeboard/cert.pem",
    )
    assert Settings.load(environ=settings.environment_variables()) == settings


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        load().poll_seconds = 1.0  # type: ignore[misc]


def test_a_folder_may_start_at_home() -> None:
    assert load(data_dir="~/w").data_dir == Path("~/w").expanduser()
