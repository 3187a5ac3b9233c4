"""Telling that the database itself does not answer: without it, from the memory of the web process.

Knows no database. Of the processes that share ``stage`` (an open file) one speaks: the one that holds its
lock. What people were told is kept in that file, so a successor does not begin again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from wakeboard.alerts.channels import Channels, NotSent, OutgoingMessage
from wakeboard.alerts.finding import Finding
from wakeboard.alerts.messages import MessageText, words
from wakeboard.alerts.rule_state import RuleMemory, judge
from wakeboard.alerts.watch import place_of
from wakeboard.config import log
from wakeboard.config.settings import Settings
from wakeboard.core.rule_types import OUTAGE, WINDOW

# Longer than a restart takes, and than the wait of a statement that is given up.
PATIENCE_SECONDS = 45.0
REMIND_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class OutageMessage:
    """A message that was sent without the database, to be written there once it answers."""

    cause: str
    channel: str
    words: MessageText
    answer: str


class Outage:
    """One process's view of whether the database answers. ``answered`` is called from another thread."""

    def __init__(
        self,
        settings: Settings,
        stage: int,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        window_seconds: float = WINDOW.default,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``stage`` is the descriptor of a file that the processes of one dashboard inherited."""
        self._settings = settings
        self._stage = stage
        self._patience_seconds = patience_seconds
        self.window_seconds = window_seconds
        self._clock = clock
        self._answered = monotonic()
        self._answered_at = clock()
        self._is_elected = False
        self.history: list[OutageMessage] = []

    def answered(self) -> None:
        """Note that the database answers."""
        self._answered, self._answered_at = monotonic(), self._clock()

    def step(self) -> None:
        """Tell people when it is time; a message that no channel took is tried again at the next step."""
        if not self._settings.alert_channels or not self._elected():
            return
        firing = monotonic() - self._answered > self._patience_seconds
        before = self._read()
        after, news = judge(
            before,
            self._clock(),
            firing=firing,
            window_seconds=self.window_seconds,
            remind_seconds=REMIND_SECONDS,
        )
        if news is not None and not self._tell(news, after):
            after = RuleMemory(after.state, before.told, after.turns, after.fired_at, after.recovered_at)
        if after != before:
            self._write(after)

    def _elected(self) -> bool:
        """Whether this process speaks. The lock goes with the process that holds it."""
        if not self._is_elected:
            try:
                fcntl.lockf(self._stage, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._is_elected = True
            except OSError:
                return False
        return True

    def _tell(self, news: Any, memory: RuleMemory) -> bool:
        """Send to every channel; return whether one took it."""
        since = self._answered_at.strftime("%Y-%m-%d %H:%M:%S UTC")
        sentence = (
            "The database answers again."
            if news == "recovered"
            else f"The database does not answer since {since}: nothing is run, recorded or shown. "
            "Start it again."
        )
        finding = Finding(news != "recovered", sentence, 0, 0, "seconds")
        place = place_of(self._settings, None)
        text = words(OUTAGE, OUTAGE, news, finding, memory, place, self._clock())
        name = f"alert.database.{int(self._clock().timestamp())}.{os.getpid()}"
        accepted = False
        for channel in self._settings.alert_channels:
            try:
                answer = Channels(self._settings).send(
                    channel, OutgoingMessage(name, text.subject, text.body)
                )
                self.history.append(OutageMessage(news, channel, text, answer))
                accepted = True
            except NotSent as failure:
                log.warn("An alert could not be sent.", rule=OUTAGE, channel=channel, error=str(failure))
        return accepted

    def _read(self) -> RuleMemory:
        text = os.pread(self._stage, 10_000, 0)
        if not text:
            return RuleMemory()
        kept = json.loads(text)
        for name in ("fired_at", "recovered_at", "sent_at", "silenced_until"):
            kept[name] = datetime.fromisoformat(kept[name]) if kept[name] else None
        return RuleMemory(**kept)

    def _write(self, memory: RuleMemory) -> None:
        text = json.dumps(asdict(memory), default=lambda moment: moment.isoformat()).encode()
        os.ftruncate(self._stage, 0)
        os.pwrite(self._stage, text, 0)
