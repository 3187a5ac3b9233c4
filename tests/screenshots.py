"""Takes the pictures of the documents: a demo of its own, a shop in trouble, a fixed walk; bin/screenshots.

What can be fixed is: zone, size, scheme, no animation, the shop's past (from one seed), what is done to it.
Times are those of the day: the past ends now.
"""

from __future__ import annotations

import argparse
import io
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, BrowserContext, FloatRect, Page, sync_playwright

from tests.browser.conftest import CHROMIUM, QUIET
from tests.conftest import Connection
from tests.support.browsers import profile
from tests.support.demo import Demo, empty_home, environment, running_demo
from tests.support.processes import ROOT, wait_until
from wakeboard.database import db

FOLDER = ROOT / "docs" / "screenshots"
MOST_BYTES = 1_500_000
COLOURS = 128
DESK: dict[str, Any] = {
    "viewport": {"width": 1280, "height": 800},
    "color_scheme": "light",
    "locale": "en-GB",
}
DARK = DESK | {"color_scheme": "dark"}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 780},
    "device_scale_factor": 2,
    "color_scheme": "light",
    "locale": "en-GB",
}
# Where the page ends: what is blank below is left out.
END = """Math.max(
  ...[...document.querySelectorAll('main, footer > *')].map(part => part.getBoundingClientRect().bottom)
)"""
WORK_SECONDS = 180
RUNNING = "SELECT id FROM wakeboard.job_runs WHERE status = 'running' AND progress_done > 20"
NEWEST = "SELECT max(id) FROM wakeboard.job_runs WHERE "


@dataclass(frozen=True)
class Shot:
    """One picture: the file's name, the page (``{dead}`` and such: a run of the shop), and how it is seen."""

    name: str
    address: str
    seen: dict[str, Any]


# Leases first: the long import is at work then.
SHOTS = (
    Shot("leases", "/leases", DESK),
    Shot("overview", "/", DESK),
    Shot("overview-dark", "/", DARK),
    Shot("overview-phone", "/", PHONE),
    Shot("runs", "/runs?status=failed,dead", DESK),
    Shot("run-dead", "/runs/{dead}", DESK),
    Shot("run-dead-dark", "/runs/{dead}", DARK),
    Shot("run-phone", "/runs/{dead}", PHONE),
    Shot("why-it-waits", "/runs/{waiting}", DESK),
    Shot("errors", "/errors", DESK),
    Shot("schedules", "/schedules", DESK),
    Shot("night", "/night?since=24h", DESK),
    Shot("night-dark", "/night?since=24h", DARK),
    Shot("confirm", "/runs/{waiting}/cancel", DESK),
    Shot("audit", "/audit", DESK),
    Shot("system", "/system", DESK),
)


def main() -> int:
    """Take the pictures that are asked for; return 1 when all together are too large."""
    parser = argparse.ArgumentParser(prog="bin/screenshots", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--into", type=Path, default=FOLDER, metavar="FOLDER")
    asked = parser.parse_args()
    if CHROMIUM is None:
        sys.exit("Screenshots need a browser: apt-get install chromium")
    asked.into.mkdir(parents=True, exist_ok=True)
    with shop() as (demo, connection), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        runs = act(browser, demo, connection)
        for shot in SHOTS:
            if not asked.names or shot.name in asked.names:
                picture = take(browser, demo, connection, shot, runs)
                (asked.into / f"{shot.name}.png").write_bytes(picture)
                print(f"{len(picture):9,} {shot.name}", flush=True)
        browser.close()
    total = sum(file.stat().st_size for file in asked.into.glob("*.png"))
    print(f"{total:9,} of {MOST_BYTES:,} bytes")
    return int(total > MOST_BYTES)


@contextmanager
def shop() -> Iterator[tuple[Demo, Connection]]:
    """Run the demo in an empty home, and connect to its database; nothing is left of it."""
    with empty_home(None) as home, running_demo(home) as demo:
        command = [sys.executable, "-P", "-m", "wakeboard", "db", "url"]
        told = subprocess.run(
            command, cwd=home, env=environment(home), capture_output=True, text=True, check=True
        )
        with db.connect(told.stdout.strip(), name="wakeboard screenshots") as connection:
            yield demo, connection


def act(browser: Browser, demo: Demo, connection: Connection) -> dict[str, int]:
    """Do what operators do in a shop in trouble; return the runs worth a picture, by what they are."""
    with profile(browser, demo.url, connection) as anna:
        press(anna, "/types/tell_team/pause", reason="the chat provider is being moved")
        for _ in range(3):
            press(anna, "/demo/order")
        press(anna, "/demo/report")
        given_up = newest(connection, "status = 'dead' AND job_type = 'sync_stock'")
        declined = newest(connection, "status = 'dead' AND error_code = 'card_declined'")
        press(anna, f"/runs/{declined}/retry", reason="the customer has a new card")
        press(anna, "/schedules/disk-space/run", reason="how full is it?")
        press(anna, "/runs/views/save", name="Dead cards", query="status=dead&type=charge_card")
        wait_until(
            lambda: connection.execute(RUNNING).fetchone(), WORK_SECONDS, "the catalogue is being imported"
        )
        waiting = wait_until(
            lambda: newest(connection, "status = 'queued' AND job_type = 'tell_team'"),
            WORK_SECONDS,
            "a message waits for its type",
        )
    return {"dead": given_up, "waiting": waiting}


def newest(connection: Connection, which: str) -> int:
    """Return the newest run of a kind; 0 when there is none."""
    row = connection.execute((NEWEST + which).encode()).fetchone()
    return int(row[0] or 0) if row else 0


def press(person: BrowserContext, address: str, **fields: str) -> None:
    """Press a button as ``person``. Raises RuntimeError when it is refused."""
    answer = person.request.post(
        address, form=fields, headers={"Sec-Fetch-Site": "same-origin", "Accept": "application/json"}
    )
    if not answer.ok:
        raise RuntimeError(f"{address} answered {answer.status}: {answer.text()[:300]}")


def take(browser: Browser, demo: Demo, connection: Connection, shot: Shot, runs: dict[str, int]) -> bytes:
    """Return the picture of one page, once it is as live as it gets."""
    with profile(browser, demo.url, connection, reduced_motion="reduce", **shot.seen) as opened:
        page = opened.new_page()
        page.goto(shot.address.format(**runs), wait_until="networkidle")
        settle(page)
        width, height = shot.seen["viewport"].values()
        end = min(height, math.ceil(page.evaluate(END)) + 16)
        seen: FloatRect = {"x": 0, "y": 0, "width": width, "height": end}
        return packed(page.screenshot(animations="disabled", caret="hide", scale="device", clip=seen))


def settle(page: Page) -> None:
    """Wait until the script has made times relative and painted the page."""
    page.wait_for_function("document.documentElement.classList.contains('js')")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def packed(png: bytes) -> bytes:
    """Return the picture with a palette of its own colours: a quarter of the size, to the eye the same."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    few = picture.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    written = io.BytesIO()
    few.save(written, "PNG", optimize=True)
    return written.getvalue()


if __name__ == "__main__":
    sys.exit(main())
