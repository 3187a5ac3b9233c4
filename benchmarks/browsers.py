"""Browsers that have a page of ours open, as many as one likes, each with its own session and connection.

They do what the script of a page does: ask for each live region as often as it says, with the tag of what
they show, and take over what is new.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import unescape
from time import monotonic

REGION = re.compile(
    r'hx-get="(?P<address>[^"]+)" hx-trigger="every (?P<seconds>\d+)s[^"]*"[^>]*? hx-ptag="(?P<tag>\w+)"'
)
BROWSER = (
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/148.0.0.0 "
    "Safari/537.36\r\nAccept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-US,en;q=0.9\r\n"
    "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n"
)


@dataclass(slots=True)
class Region:
    """One live region: where it is asked for, how often, and the tag of what is shown."""

    address: str
    seconds: float
    tag: str
    due_at: float
    news_at: list[float] = field(default_factory=list)


class Viewer:
    """One browser at ``page``; ``cookie`` is its session, ``delay`` when it comes, in seconds."""

    def __init__(self, port: int, page: str, cookie: str, delay: float) -> None:
        self._port = port
        self.page = page
        self._cookie = cookie
        self._delay = delay
        self.regions: list[Region] = []
        self.asked = self.refused = 0

    async def watch(self) -> None:
        """Open the page and follow it until cancelled."""
        await asyncio.sleep(self._delay)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            _, _, html = await self._get(reader, writer, self.page, "Accept: text/html\r\n")
            now = monotonic()
            self.regions = [
                Region(
                    unescape(found["address"]),
                    float(found["seconds"]),
                    found["tag"],
                    now + float(found["seconds"]),
                )
                for found in REGION.finditer(html)
            ]
            if not self.regions:
                raise RuntimeError(f"{self.page} has no live region: {html[:200]}")
            while True:
                region = min(self.regions, key=lambda each: each.due_at)
                await asyncio.sleep(max(0.0, region.due_at - monotonic()))
                region.due_at = monotonic() + region.seconds
                await self._ask(reader, writer, region)
        finally:
            writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, region: Region) -> None:
        own = (
            f"Accept: text/html\r\nHX-Request: true\r\nHX-PTag: {region.tag}\r\n"
            f"HX-Current-URL: http://127.0.0.1:{self._port}{self.page}\r\n"
        )
        status, headers, _ = await self._get(reader, writer, region.address, own)
        self.asked += 1
        self.refused += status not in (200, 304)
        if status == 200 and headers["hx-ptag"] != region.tag:
            region.tag = headers["hx-ptag"]
            region.news_at.append(monotonic())

    async def _get(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, own: str
    ) -> tuple[int, dict[str, str], str]:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nConnection: keep-alive\r\n{own}"
            f"{BROWSER.replace('gzip, deflate, br, zstd', 'identity')}Cookie: {self._cookie}\r\n\r\n".encode()
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)
        }
        length = int(headers.get("content-length", 0))
        body = await reader.readexactly(length) if length else b""
        return int(head[0].split()[1]), headers, body.decode()


async def all_watch(viewers: Sequence[Viewer], seconds: float) -> None:
    """Let all ``viewers`` follow their pages for ``seconds``. Raises what any of them met."""
    tasks = [asyncio.create_task(viewer.watch()) for viewer in viewers]
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
