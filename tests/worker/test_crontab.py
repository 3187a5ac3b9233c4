"""Crontab files: which lines are taken over, as what, and what every other line is told."""

import dataclasses
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeboard.queue.definitions import Definition
from wakeboard.schedules.crontab import CrontabLine, parse_crontab, split_command

REALISTIC = """\
# m h  dom mon dow   command
SHELL=/bin/bash
PATH = "/usr/local/bin:/usr/bin:/bin"
MAILTO=ops@example.com
CRON_TZ=Europe/Paris

15 2 * * *	/opt/shop/bin/backup.sh --full >/dev/null 2>&1
*/10 8-18 * * mon-fri cd /srv/shop && ./manage.py send_invoices
@daily /usr/bin/mysqldump shop > /backup/shop-$(date +\\%F).sql
@reboot /opt/shop/bin/warm-cache
0 22-2 * * * /opt/shop/bin/night-watch
30 6 1 jan,jul * mail -s "Half a year" team@example.com%Dear all,%%it is that time again.
"""


def read(
    text: str, *, system: bool = False, user: str = "deploy", timezone: str = "UTC"
) -> list[CrontabLine]:
    return parse_crontab(text, system=system, user=user, timezone=timezone)


def only(text: str, **options: Any) -> CrontabLine:
    return read(text, **options)[-1]


def taken(text: str, **options: Any) -> Definition:
    line = only(text, **options)
    assert line.definition is not None, line.reason
    return line.definition


def run(definition: Definition) -> str:
    payload = definition.payload
    done = subprocess.run(
        payload["argv"],
        env=payload["env"],
        input=payload.get("stdin", ""),
        capture_output=True,
        text=True,
        check=True,
    )
    return str(done.stdout)


def test_each_line_of_a_realistic_file_is_accounted_for() -> None:
    lines = read(REALISTIC)
    assert [line.number for line in lines] == list(range(1, 13))
    assert [line.text for line in lines] == REALISTIC.splitlines()
    assert [line.kind for line in lines] == [
        *["comment", "environment", "environment", "environment", "environment", "blank"],
        *["taken", "taken", "taken", "refused", "refused", "taken"],
    ]
    assert [line.definition.name.rpartition("-")[0] for line in lines if line.definition] == [
        *["backup-sh", "manage-py-send_invoices", "mysqldump-shop", "mail"],
    ]
    assert (lines[3].note or "").startswith("MAILTO is not used: there is no mail of what a command prints.")
    assert "WAKEBOARD_ALERT_MAIL" in (lines[3].note or "")
    assert "start-up" in (lines[9].reason or "")
    assert "hour field '22-2'" in (lines[10].reason or "")


def test_a_taken_line_runs_as_cron_would_run_it() -> None:
    definition = read(REALISTIC)[11].definition
    assert definition is not None
    assert dataclasses.asdict(definition) == {
        "name": definition.name,
        "job_type": "command",
        "schedule": "30 6 1 jan,jul *",
        "timezone": "Europe/Paris",
        "payload": {
            "argv": ["/bin/bash", "-c", 'mail -s "Half a year" team@example.com'],
            "env": {
                "SHELL": "/bin/bash",
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "MAILTO": "ops@example.com",
                "CRON_TZ": "Europe/Paris",
            },
            "stdin": "Dear all,\n\nit is that time again.\n",
        },
        "misfire": "none",
        "grace_seconds": 300,
        "overlap": "skip",
        "priority": 2,
        "max_attempts": 1,
        "timeout_seconds": 86_400,
    }


def test_the_shell_gets_the_percent_signs_the_variables_and_the_input() -> None:
    assert run(taken(r"0 0 * * * echo '50\%'; cat%a\%b%c")) == "50%\na%b\nc\n"
    assert (
        run(taken("WHO='the  world'\n@hourly echo \"hello $WHO\" $PATH"))
        == "hello the  world /usr/bin:/bin\n"
    )


@pytest.mark.parametrize(
    ("rest", "command", "stdin"),
    [
        ("date", "date", None),
        (r"date +\%F", "date +%F", None),
        ("cat%", "cat", ""),
        ("cat%x", "cat", "x\n"),
        ("cat%x%", "cat", "x\n"),
        ("cat%x%y", "cat", "x\ny\n"),
        (r"cat%\%%", "cat", "%\n"),
        (r"echo \\%x", "echo \\\\", "x\n"),
        (r"echo a\b\%", r"echo a\b%", None),
        ("echo \\", "echo \\", None),
    ],
)
def test_percent_signs_are_split_as_cron_splits_them(rest: str, command: str, stdin: str | None) -> None:
    assert split_command(rest) == (command, stdin)


def test_without_a_line_of_its_own_a_command_has_cron_s_shell_and_path() -> None:
    definition = taken("0 5 * * * backup")
    assert definition.payload == {
        "argv": ["/bin/sh", "-c", "backup"],
        "env": {"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"},
    }
    assert definition.timezone == "UTC"
    assert taken("0 5 * * * backup%").payload["stdin"] == ""


def test_variables_hold_from_their_line_on() -> None:
    before, _, after = read("@daily a\nKEY=1\n@daily b")
    assert before.definition is not None
    assert after.definition is not None
    assert "KEY" not in before.definition.payload["env"]
    assert after.definition.payload["env"]["KEY"] == "1"


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("KEY=value", "KEY", "value"),
        ("  KEY\t= two words  ", "KEY", "two words"),
        ('KEY="  kept  "', "KEY", "  kept  "),
        ("KEY='a \"b\" c'", "KEY", 'a "b" c'),
        ("'KEY'=x", "KEY", "x"),
        ("KEY=", "KEY", ""),
        ('KEY=""', "KEY", ""),
        ("KEY=$HOME/bin:a=b # c", "KEY", "$HOME/bin:a=b # c"),
        ("HOME=/srv/shop\r", "HOME", "/srv/shop"),
    ],
)
def test_environment_lines_are_read_as_cron_reads_them(line: str, name: str, value: str) -> None:
    environment, command = read(f"{line}\n@daily x")
    assert environment.kind == "environment"
    assert command.definition is not None
    assert command.definition.payload["env"][name] == value


@pytest.mark.parametrize("line", ["MY-KEY=1", "1KEY=2", 'KEY="open', 'KEY="a" b', "=x=y"])
def test_a_wrong_environment_line_says_what_it_costs(line: str) -> None:
    refused, command = read(f"{line}\n@daily x")
    assert refused.kind == "refused"
    if "=x" not in line:
        assert "would run without it" in (refused.reason or "")
    assert command.kind == "taken"


def test_the_shell_line_chooses_the_shell_and_an_empty_one_does_not() -> None:
    assert taken("SHELL=/bin/zsh\n@daily x").payload["argv"] == ["/bin/zsh", "-c", "x"]
    assert taken("SHELL=\n@daily x").payload["argv"][0] == "/bin/sh"


def test_the_name_of_the_user_cannot_be_changed() -> None:
    line, command = read("LOGNAME=root\n@daily x")
    assert "not taken over" in (line.note or "")
    assert command.definition is not None
    assert "LOGNAME" not in command.definition.payload["env"]


def test_the_zone_comes_from_the_file_and_else_from_the_caller() -> None:
    assert taken("@daily x", timezone="Asia/Tokyo").timezone == "Asia/Tokyo"
    assert taken("TZ=:Europe/Paris\n@daily x", timezone="Asia/Tokyo").timezone == "Europe/Paris"
    assert taken("CRON_TZ=America/Lima\nTZ=Europe/Paris\n@daily x").timezone == "America/Lima"
    assert taken("CRON_TZ=America/Lima\nCRON_TZ=\n@daily x").timezone == "UTC"
    with pytest.raises(ValueError, match="Mars/Base"):
        read("@daily x", timezone="Mars/Base")


def test_lines_under_an_unknown_zone_are_refused_until_it_is_mended() -> None:
    _, refused, _, mended = read("CRON_TZ=Mars/Base\n@daily x\nCRON_TZ=UTC\n@daily y")
    assert "CRON_TZ of line 1" in (refused.reason or "")
    assert "Mars/Base" in (refused.reason or "")
    assert mended.kind == "taken"


def test_each_line_of_a_system_crontab_is_a_command_of_its_user() -> None:
    mine, theirs, no_user, no_command = read(
        "17 *\t* * *\tdeploy\tcd / && run-parts --report /etc/cron.hourly\n"
        "25 6 * * * backup /usr/local/bin/backup\n"
        "0 5 * * * /usr/bin/thing --now\n"
        "0 5 * * * deploy",
        system=True,
    )
    assert mine.definition is not None
    assert mine.definition.payload["argv"][2] == "cd / && run-parts --report /etc/cron.hourly"
    assert theirs.definition is not None
    assert (mine.definition.job_type, mine.user) == ("command:deploy", "deploy")
    assert (theirs.definition.job_type, theirs.user) == ("command:backup", "backup")
    assert "'/usr/bin/thing' is not the name of one" in (no_user.reason or "")
    assert "no command after the user" in (no_command.reason or "")


def test_the_same_command_of_two_users_has_two_names_and_each_its_own() -> None:
    first, second, third = read("@daily root x\n@daily backup x\n@daily root x", system=True)
    assert first.definition and second.definition and third.definition
    assert len({line.suffixes[0] for line in (first, second, third)}) == 3
    assert {line.suffixes[1].removesuffix("-2") for line in (first, second, third)} == set(
        only("@daily x").suffixes
    )
    assert (second.note, third.note) == (None, "the same as line 1: both run, as in cron")


def test_a_system_crontab_read_as_a_user_s_gets_a_hint() -> None:
    assert "--system" in (only("17 * * * * root cd / && run-parts /etc/cron.hourly").note or "")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("@reboot x", "start-up"),
        ("@every_minute x", "not a known name"),
        ("-*/15 * * * * x", "leading '-'"),
        ("@reboot", "no command"),
        ("* * * *", "4 fields"),
        ("0 5 * /opt/x --all", "has three time fields (0 5 *) before '/opt/x'; it takes five: minute, hour,"),
        ("0 /opt/x", "has one time field (0) before '/opt/x'"),
        ("5 4 * jan backup.sh now", "has four time fields (5 4 * jan) before 'backup.sh'"),
        ("1 5 cron.daily nice run-parts /etc/cron.daily", "It is a line of an anacrontab"),
        ("@monthly 15 cron.monthly nice run-parts /x", "It is a line of an anacrontab"),
        ("nonsense", "1 field,"),
        ("0 5 * * *", "no command"),
        ("@daily", "no command"),
        ("61 * * * * x", "minute field '61'"),
        ("0 0 * * fri-mon x", "day of week field 'fri-mon'"),
        ("0 0 31 2 * x", "never comes"),
        ("*/90 * * * * x", "it would fire at minute 0 alone"),
        ("~ * * * * x", "minute field '~'"),
        ("@daily a\0b", "control characters"),
        ("@daily a\rb", "control characters"),
        ("@daily \udcff", "not UTF-8"),
        ("@daily " + "x" * 20_000, "characters"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_the_reason(line: str, why: str) -> None:
    found = only(line)
    assert found.kind == "refused"
    assert found.definition is None
    assert why in (found.reason or "")
    assert (found.reason or "").endswith(".")


@pytest.mark.parametrize(
    "line",
    [
        "0 5 * * mon-fri x",
        "0 5 * jan * x",
        "*/10 * * * * x",
        "0-30/10 1,2 1-7 * sun x",
        "@midnight x",
        "@ANNUALLY x",
    ],
)
def test_names_ranges_steps_and_lists_are_taken(line: str) -> None:
    assert taken(line).schedule == line.removesuffix(" x")


def test_windows_line_endings_tabs_and_a_missing_last_one_change_nothing() -> None:
    plain = read(REALISTIC)
    windows = read("\ufeff" + REALISTIC.replace("\n", "  \r\n").rstrip())
    assert [line.definition for line in windows] == [line.definition for line in plain]
    assert [line.kind for line in windows] == [line.kind for line in plain]


def test_an_empty_file_has_no_lines() -> None:
    assert read("") == []
    assert [line.kind for line in read("\n\n")] == ["blank", "blank"]


def test_names_stay_when_lines_come_go_and_move() -> None:
    jobs = ["0 1 * * * /opt/a", "0 2 * * * /opt/a", "0 1 * * * /opt/a --b", "@daily FOO=1 /opt/c"]
    names = {job: taken(job).name for job in jobs}
    assert len(set(names.values())) == len(jobs)
    moved = read("PATH=/bin\n# more\n@hourly new\n" + "\n".join(reversed(jobs)))
    assert {line.text: line.definition.name for line in moved[3:] if line.definition} == names
    assert taken("0  1\t* * *   /opt/a  ").name == names["0 1 * * * /opt/a"]
    assert taken("@DAILY FOO=1 /opt/c").name == names["@daily FOO=1 /opt/c"]


def test_equal_lines_are_both_taken_under_names_of_their_own() -> None:
    first, second, third = read("@daily x\n@daily x\n@daily x")
    assert first.definition is not None
    assert second.definition is not None
    assert third.definition is not None
    assert second.definition.name == first.definition.name + "-2"
    assert third.definition.name == first.definition.name + "-3"
    assert second.note == "the same as line 1: both run, as in cron"


@pytest.mark.parametrize(
    ("command", "slug"),
    [
        ("/usr/bin/php /srv/shop/artisan schedule:run", "php-artisan"),
        ("cd /srv/x && A=1 nice ./run.sh", "run-sh"),
        ("$HOME/bin/report", "report"),
        ("curl -u admin:hunter2 https://example.com", "curl"),
        ("notify s3cr3t-t0ken", "notify"),
        ('notify "secret"', "notify"),
        ("psql postgres://u:secret@h/d", "psql"),
        ("[ -x /bin/x ] && /bin/x", "x"),
        (
            "test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )",
            "run-parts-cron-daily",
        ),
        ("/usr/bin/flock -w 5 -E 0 /tmp/l nice -n 10 /usr/bin/php /srv/artisan run", "php-artisan"),
        ("flock -xn /tmp/l -c 'timeout -k 5s 1h /opt/dump all'", "dump-all"),
        (
            "cd /srv && . venv/bin/activate && TOKEN='a b' ionice -c2 -n7 python3 -u -m shop.report",
            "shop-report",
        ),
        ('sudo -u www-data -E env A=b bash -lc "/opt/sync"', "sync"),
        ("if [ -f /x ]; then /opt/clean up; fi", "clean-up"),
        (r"sleep $((RANDOM \% 60)); /opt/poll; true", "poll"),
        ("pgrep -x daemon >/dev/null || /etc/init.d/daemon start", "daemon-start"),
        ("command -v needrestart >/dev/null && needrestart -b", "needrestart"),
        ("test -x /bin/certbot && perl -e 'sleep int(rand(43200))' && certbot -q renew", "certbot"),
        ("true", "true"),
        ("&&", "command"),
        ("[ -f /x ] &&", "command"),
        ("/opt/" + "long" * 60, ("long" * 60)[:50]),
        ("/opt/Übung", "ubung"),
    ],
)
def test_a_name_starts_with_what_runs_and_shows_no_secret(command: str, slug: str) -> None:
    name = taken(f"@daily {command}").name
    assert name.rpartition("-")[0] == slug
    assert len(name) <= 100


@pytest.mark.parametrize(
    ("comment", "slug"),
    [
        ("# Nightly database dump", "nightly-database-dump"),
        ("#Ansible: rotate the logs", "rotate-the-logs"),
        ("# Puppet Name: sync_users", "sync_users"),
        ("### Sauvegarde de l'été ###", "sauvegarde-de-l-ete"),
        (
            "# Sends the weekly figures to the heads of all the departments.",
            "sends-the-weekly-figures-to-the",
        ),
        ("# step 2 of the move", "step-of-the-move"),
        ("# m h  dom mon dow   command", "dump"),
        ("# min hour day month weekday", "dump"),
        ("# DO NOT EDIT THIS FILE", "dump"),
        ("# *  *  *  *  * user-name command to be executed", "dump"),
        ("# 0 4 * * * /opt/other", "dump"),
        ("# password=hunter2", "dump"),
        ("# see https://u:p@example.com", "dump"),
        ("#", "dump"),
        ("# ab", "dump"),
        ("# Nightly dump\n", "dump"),
        ("# Nightly dump\nFOO=1", "dump"),
    ],
)
def test_a_name_is_the_comment_above_where_that_is_a_phrase(comment: str, slug: str) -> None:
    named = taken(f"{comment}\n0 3 * * * /opt/dump")
    assert named.name.rpartition("-")[0] == slug
    assert only(f"{comment}\n0 3 * * * /opt/dump").suffixes == only("0 3 * * * /opt/dump").suffixes


@pytest.mark.parametrize(
    ("command", "program", "code"),
    [
        ("[ -x /bin/x ] && /bin/x", "[", 1),
        ("test -x /bin/x && nice /bin/x", "test", 1),
        ("cd /srv && [[ -f x ]] && ./run", "[[", 1),
        ("flock -n /run/l ./run", "flock", 1),
        ("/usr/bin/flock --nonblock /run/l ./run", "flock", 1),
        ("flock -w 10 -E 75 /run/l ./run", "flock", 75),
        ("df -h | grep /dev/sda", "grep", 1),
        ("true; diff -r /a /b", "diff", 1),
        ("sudo -u backup pgrep rsync", "pgrep", 1),
        ("A=1 timeout 1h ./run", "timeout", 124),
        ("timeout -k 5 1h grep x /y", "grep", 1),
        ("sh -c 'grep x /y > /z'", "grep", 1),
        ("[ -x /bin/x ] && if [ -d /y ]; then /bin/x; fi", "[", 1),
        ("./a || ./b && cmp c d", "cmp", 1),
    ],
)
def test_a_line_whose_ordinary_exit_is_not_0_is_known(command: str, program: str, code: int) -> None:
    exits = only(f"@daily {command}").ordinary_exit
    assert exits is not None
    assert (exits.program, exits.code) == (program, code)
    assert exits.why


@pytest.mark.parametrize(
    "command",
    [
        "test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )",
        "[ -x /bin/x ] && /bin/x || true",
        "grep x /y | mail -s x me",
        "grep x /y; ./run",
        "if grep -q x /y; then ./run; fi",
        "flock /run/l ./run",
        "flock -n -E 0 /run/l ./run",
        "echo 'grep x'",
        "echo test",
        "echo 'open",
        "/opt/difference",
    ],
)
def test_a_line_that_ends_with_0_where_all_is_well_is_not_noted(command: str) -> None:
    assert only(f"@daily {command}").ordinary_exit is None


@pytest.mark.parametrize(
    "word",
    [
        *(
            "timeout 1 ",
            "sudo -ua ",
            "flock -a ",
            "sh -c '",
            'sh -c "',
            "nice -n 1 ",
            "A=1 ",
            "(",
            "[ x && ",
            "if ",
        ),
        *("test a;", "cd x;", "-a 1 ", "$(", "`", "\\", "&&", "||", "a=", "perl -e '", "./"),
    ],
)
def test_the_longest_lines_are_read_fast_whatever_is_in_them(word: str) -> None:
    started = time.thread_time()
    for comment in ("", f"# {word * 3000}\n"):
        assert only(f"{comment}@daily {(word * 9_000)[:9_900]}").kind == "taken"
    assert time.thread_time() - started < 1


@pytest.mark.parametrize("word", ["*", "*/30", "1-5", "?", "0,30"])
def test_a_sixth_time_field_is_noted_and_in_a_system_crontab_no_user(word: str) -> None:
    assert f"{word!r} is taken for the command, as in cron" in (only(f"*/30 * * * * {word} run").note or "")
    refused = only(f"*/30 * * * * {word} run", system=True)
    assert "five time fields and none for seconds" in (refused.reason or "")


def test_a_line_of_the_machine_s_start_is_a_unit_that_runs_the_same() -> None:
    line = only(r"PATH=/bin:/opt/100\%" + "\n" + r'@reboot cd /srv && ./run "50\%" $HOME%one%  two')
    assert line.kind == "refused"
    assert line.unit == (
        "# /etc/systemd/system/run.service\n[Unit]\nDescription=run\nAfter=network.target\n\n"
        "[Service]\nType=exec\nUser=deploy\n"
        'WorkingDirectory=-~\nEnvironment="SHELL=/bin/sh" "PATH=/bin:/opt/100\\\\%%"\n'
        r'ExecStart="/bin/sh" "-c" "cd /srv && ./run \"50%%\" $$HOME"' + "\n"
        "StandardInput=data\nStandardInputText=one\\n  two\nRemainAfterExit=yes\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
    assert "\nUser=backup\n" in (only("@reboot backup /opt/x", system=True).unit or "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_understands_the_unit_and_says_nothing_about_it(tmp_path: Path) -> None:
    line = only(r"""@reboot cd /srv && /opt/warm "50\%" 'a\tb' $HOME%one%  two""", user="root")
    file = tmp_path / "warm.service"
    file.write_text(line.unit or "")
    said = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


@given(
    st.text(alphabet=st.sampled_from("*/05-,@dailyreboot= \t\"'%\\#\n\r\0\x85KEY\u2028é\udcff"), max_size=80),
    st.booleans(),
)
def test_no_file_raises_and_every_line_is_accounted_for(text: str, system: bool) -> None:
    lines = read(text, system=system)
    names = [line.definition.name for line in lines if line.definition]
    assert len(lines) == text.removesuffix("\n").count("\n") + 1 if text else not lines
    assert len(names) == len(set(names))
    for line in lines:
        assert (line.kind == "refused") == (line.reason is not None)
        assert (line.kind == "taken") == (line.definition is not None)


@given(
    st.lists(
        st.sampled_from(["* * * * * ", "@daily "]).flatmap(lambda s: st.text(min_size=1).map(lambda t: s + t))
    )
)
def test_names_are_always_allowed_and_unique(lines: list[str]) -> None:
    names = [line.definition.name for line in read("\n".join(lines)) if line.definition]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z0-9_-]{1,100}", name) for name in names)
