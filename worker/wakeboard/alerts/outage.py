"""The alert that the database itself does not answer; it needs no database.

Of the processes that share ``lock_file`` (an open file) one sends: the one that has locked it. The state of
the alert is stored in that file, so a successor does not begin again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from time import monotonic

from wakeboard.alerts.channels import Channels, NotSent, OutgoingMessage
from wakeboard.alerts.finding import Finding
from wakeboard.alerts.messages import MessageText, Origin, write_message
from wakeboard.alerts.rule_state import Notice, RuleState, next_state
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
    text: MessageText
    answer: str


class Outage:
    """One process's view of whether the database answers. ``answered`` is called from another thread."""

    def __init__(
        self,
        settings: Settings,
        lock_file: int,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        window_seconds: float = WINDOW.default,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``lock_file`` is the descriptor of a file that the processes of one dashboard inherited."""
        self._settings = settings
        self._lock_file = lock_file
        self._patience_seconds = patience_seconds
        self.window_seconds = window_seconds
        self._clock = clock
        self._answered = monotonic()
        self._answered_at = clock()
        self._is_locked = False
        self.sent: list[OutageMessage] = []

    def answered(self) -> None:
        """Note that the database answers."""
        self._answered, self._answered_at = monotonic(), self._clock()

    def step(self) -> None:
        """Send what is due; a message that no channel accepted is tried again at the next step."""
        if not self._settings.alert_channels or not self._lock():
            return
        firing = monotonic() - self._answered > self._patience_seconds
        before = self._read()
        after, notice = next_state(
            before,
            self._clock(),
            firing=firing,
            window_seconds=self.window_seconds,
            remind_seconds=REMIND_SECONDS,
        )
        if notice is not None and not self._send(notice, after):
            after = RuleState(after.state, before.told, after.turns, after.fired_at, after.recovered_at)
        if after != before:
            self._write(after)

    def _lock(self) -> bool:
        """Return whether this process has the lock, which ends with the process."""
        if not self._is_locked:
            try:
                fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._is_locked = True
            except OSError:
                return False
        return True

    def _send(self, notice: Notice, state: RuleState) -> bool:
        """Send to every channel; return whether one accepted."""
        since = self._answered_at.strftime("%Y-%m-%d %H:%M:%S UTC")
        sentence = (
            "The database answers again."
            if notice == "recovered"
            else f"The database does not answer since {since}: nothing is run, recorded or shown. "
            "Start it again."
        )
        finding = Finding(notice != "recovered", sentence, 0, 0, "seconds")
        origin = Origin.of(self._settings, None)
        text = write_message(OUTAGE, OUTAGE, notice, finding, state, origin, self._clock())
        name = f"alert.database.{int(self._clock().timestamp())}.{os.getpid()}"
        accepted = False
        for channel in self._settings.alert_channels:
            try:
                answer = Channels(self._settings).send(
                    channel, OutgoingMessage(name, text.subject, text.body)
                )
                self.sent.append(OutageMessage(notice, channel, text, answer))
                accepted = True
            except NotSent as failure:
                log.warn("An alert could not be sent.", rule=OUTAGE, channel=channel, error=str(failure))
        return accepted

    def _read(self) -> RuleState:
        text = os.pread(self._lock_file, 10_000, 0)
        if not text:
            return RuleState()
        values = json.loads(text)
        for name in ("fired_at", "recovered_at", "sent_at", "silenced_until"):
            values[name] = datetime.fromisoformat(values[name]) if values[name] else None
        return RuleState(**values)

    def _write(self, state: RuleState) -> None:
        text = json.dumps(asdict(state), default=lambda moment: moment.isoformat()).encode()
        os.ftruncate(self._lock_file, 0)
        os.pwrite(self._lock_file, text, 0)
