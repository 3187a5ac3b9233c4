"""Somebody at the dashboard's door with nothing but HTTP: a session, a token, or neither."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode, urlsplit

JSON = {"Accept": "application/json"}
OUR_PAGE = {"Sec-Fetch-Site": "same-origin"}
OTHER_SITE = {"Sec-Fetch-Site": "cross-site", "Origin": "https://attacker.example"}


@dataclass(frozen=True)
class Reply:
    """What came back."""

    code: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Visitor:
    """Asks the dashboard at ``url``; keeps cookies as a browser does, follows no redirect by itself."""

    url: str
    token: str | None = None
    cookies: dict[str, str] = field(default_factory=dict)

    def is_answered(self) -> bool:
        """Return whether the dashboard answers now."""
        with suppress(OSError):
            return self.get("/healthz").code == 200
        return False

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Ask for ``path``."""
        return self._send("GET", path, None, headers or {})

    def post(
        self,
        path: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        json_body: Any = None,
    ) -> Reply:
        """Post a form, or JSON, to ``path``. A token sends no fetch metadata, a browser does."""
        kind = "application/x-www-form-urlencoded" if json_body is None else "application/json"
        body = urlencode(form or {}) if json_body is None else json.dumps(json_body)
        usual = {"Content-Type": kind} | ({} if self.token else OUR_PAGE)
        return self._send("POST", path, body.encode(), usual | dict(headers or {}))

    def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        address = urlsplit(self.url)
        own = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if self.cookies:
            own["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
        try:
            connection.request(method, path, body, own | dict(headers))
            answer = connection.getresponse()
            for given in answer.headers.get_all("Set-Cookie") or ():
                self.cookies |= {name: morsel.value for name, morsel in SimpleCookie(given).items()}
            return Reply(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()


def sign_in(link: str) -> Visitor:
    """Return a visitor who has used the one-time ``link`` of the terminal."""
    parts = urlsplit(link)
    visitor = Visitor(f"{parts.scheme}://{parts.netloc}")
    reply = visitor.post("/login", {"token": parts.query.removeprefix("token=")})
    assert reply.code == 303, reply.text
    return visitor
