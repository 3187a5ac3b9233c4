"""The worker's share of the alerts: looking at the rules that workers watch, and the dead man's switch."""

from __future__ import annotations

from typing import Any

import psycopg

from wakeboard.alerts.heartbeat import Heartbeat
from wakeboard.alerts.watch import Watch
from wakeboard.config.settings import Settings

ALERTS_SECONDS = 15.0


class Alerts:
    """The duty of one worker process; what it finds is delivered by runs of type ``alert``."""

    def __init__(self, settings: Settings) -> None:
        self._watch = Watch("worker", settings)
        self._heartbeat = Heartbeat(settings.heartbeat_url)

    def step(self, connection: psycopg.Connection[Any]) -> dict[str, int]:
        """Look once; return how many rules were looked at, fire, and how many messages were written."""
        self._heartbeat.step(connection)
        return self._watch.step(connection)
