"""Behind a real nginx, set up as the page on deploying says, on a port that is not the usual one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.http_client import Visitor
from tests.support.processes import ROOT, free_port, run_wakeboard, wait_until, wakeboard

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
PAGE = ROOT / "docs" / "deploying.md"
SETUP = """
daemon off; pid {folder}/pid; error_log stderr; {user}
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{
        listen 127.0.0.1:{port};
        {location}
    }}
}}
"""


def documented() -> str:
    """The part of nginx's configuration that the page shows."""
    [location] = re.findall(r"^```\n(location / \{.*?^\})\n```", PAGE.read_text(), re.M | re.S)
    return str(location)


@contextmanager
def behind_nginx(database: str, folder: Path, location: str, **variables: str) -> Iterator[str]:
    """Yield the address of an nginx with a dashboard behind it."""
    inner, port = free_port(), free_port()
    setup = folder / "nginx.conf"
    setup.write_text(
        SETUP.format(
            folder=folder,
            port=port,
            user="user root;" if os.geteuid() == 0 else "",
            location=location.replace("127.0.0.1:8080", f"127.0.0.1:{inner}"),
        )
    )
    address = f"http://127.0.0.1:{port}"
    given = {"WAKEBOARD_BEHIND_TLS_PROXY": "1"} | {
        name: text.format(address=address) for name, text in variables.items()
    }
    with (
        wakeboard("web", "--bind", f"127.0.0.1:{inner}", database=database, environment=given) as web,
        subprocess.Popen([str(NGINX), "-c", str(setup), "-p", str(folder)]) as nginx,
    ):
        try:
            web.wait_for("dashboard listens")
            wait_until(lambda: answers(address), 10, "nginx answers")
            yield address
        finally:
            nginx.terminate()


def answers(address: str) -> bool:
    try:
        return Visitor(address).get("/login").code == 200
    except OSError:
        return False


def sign_in(database: str, address: str, origin: str) -> int:
    """Sign in as a browser does that shows a page of ``origin``; the code of the answer."""
    link = run_wakeboard("login-link", database=database).stdout
    token = link.strip().partition("token=")[2]
    reply = Visitor(address).post("/login", {"token": token}, {"Origin": origin})
    return reply.code


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed here (apt-get install nginx-light)")
@pytest.mark.parametrize(
    ("host", "variables"),
    [("$http_host", {}), ("$host", {"WAKEBOARD_PUBLIC_URL": "{address}"})],
    ids=["as documented", "without the port, by the public address"],
)
def test_a_person_signs_in_on_any_port_and_another_site_does_not(
    database: str, tmp_path: Path, host: str, variables: dict[str, str]
) -> None:
    location = documented().replace("$http_host", host)
    with behind_nginx(database, tmp_path, location, **variables) as address:
        assert sign_in(database, address, address) == 303
        for other in ("http://127.0.0.1:1", "http://attacker.example", "null"):
            assert sign_in(database, address, other) == 403
