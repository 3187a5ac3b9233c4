"""The text of a message: a subject, a body for mail, a JSON body for machines. Pure.

A message carries names and counts, never a payload nor the text of an error: more people read mail boxes and
chat rooms than the pages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from wakeboard.alerts.finding import Finding, short_name
from wakeboard.alerts.rule_state import Notice, RuleState
from wakeboard.config.settings import Settings
from wakeboard.core.rule_types import KINDS, RuleType, title_of
from wakeboard.core.text.redaction import redact, redact_text

VERSION = 1
SUBJECT_CHARACTERS = 200
Cause = Notice | Literal["test"]
VERBS = {"firing": "fires", "recovered": "has recovered", "reminder": "still fires"}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message comes from: the installation's id, its environment, the address of its pages."""

    installation: str = ""
    environment: str | None = None
    public_url: str | None = None

    @classmethod
    def of(cls, settings: Settings, installation: str | None) -> Origin:
        """Return where messages of ``settings`` come from; ``installation`` is the id in the database."""
        # The setting may end in a colour, as in ``production red``.
        name, _, last_word = (settings.environment or "").rpartition(" ")
        return cls(installation or "", name or last_word or None, settings.public_url)

    @property
    def prefix(self) -> str:
        """What a subject begins with: ``[production] ``, perhaps nothing."""
        return f"[{short_name(self.environment)}] " if self.environment else ""

    def link(self, path: str) -> str | None:
        """Return the address of a page, None when no setting says where the pages are."""
        return None if self.public_url is None else self.public_url.rstrip("/") + path


@dataclass(frozen=True, slots=True)
class MessageText:
    """A message: one line, and a body whose ``text`` is the mail's."""

    subject: str
    body: dict[str, Any]

    @classmethod
    def redacted(cls, subject: str, body: dict[str, Any]) -> MessageText:
        """Return a message of at most SUBJECT_CHARACTERS of ``subject`` and of ``body``.

        What looks like a secret, as in the name of a type or the user of a link, is hidden in both.
        """
        return cls(redact_text(subject)[:SUBJECT_CHARACTERS], redact(body))


def write_message(
    rule: str,
    kind: str,
    cause: Cause,
    finding: Finding | None,
    state: RuleState,
    origin: Origin,
    now: datetime,
) -> MessageText:
    """Return the message about ``rule``. ``now`` is the database's clock, an aware datetime."""
    title = title_of(kind)
    # On a lock screen a test must not look like the alarm.
    head = f"Test, nothing is wrong: {title}" if cause == "test" else f"{title}: {VERBS[cause]}"
    link = origin.link(_page(KINDS[kind], finding, now) if kind in KINDS else "/alerts")
    sentence = finding.sentence if finding is not None else ""
    if cause == "test":
        sentence = "This is a test: somebody wants to see whether messages arrive. Nothing is wrong."
    lines = [sentence, *_history(cause, state)]
    if link is not None:
        lines.append(f"Look: {link}\nSilence or change the rule: {origin.link('/alerts')}")
    lines.append(f"Wakeboard, rule {short_name(rule)}")
    return MessageText.redacted(
        f"{origin.prefix}{head}",
        {
            "version": VERSION,
            "rule": rule,
            "kind": kind,
            "title": title,
            "cause": cause,
            "state": state.state,
            "sentence": sentence,
            **({} if finding is None else _numbers(finding)),
            "fired_at": _iso(state.fired_at),
            "recovered_at": _iso(state.recovered_at),
            "at": _iso(now),
            "environment": origin.environment,
            "installation": origin.installation,
            "link": link,
            "text": "\n\n".join(line for line in lines if line),
        },
    )


def _page(kind: RuleType, finding: Finding | None, now: datetime) -> str:
    """Return the page that shows the finding, with a fixed time, as it is opened later."""
    if kind.since is None or finding is None or not finding.firing or finding.within_seconds is None:
        return kind.page
    since = (now - timedelta(seconds=finding.within_seconds)).astimezone(UTC)
    return f"{kind.page}{'&' if '?' in kind.page else '?'}{kind.since}={since:%Y-%m-%dT%H:%M:%SZ}"


def _numbers(finding: Finding) -> dict[str, object]:
    return {
        "value": finding.value,
        "limit": finding.limit,
        "unit": finding.unit,
        "names": [short_name(name) for name in finding.names],
    }


def _history(cause: Cause, state: RuleState) -> list[str]:
    if cause == "test":
        return []
    sentences = []
    if cause == "recovered" and state.fired_at is not None and state.recovered_at is not None:
        fired, recovered = _clock(state.fired_at), _clock(state.recovered_at)
        sentences.append(f"It fired at {fired} and recovered at {recovered}.")
    elif state.fired_at is not None:
        sentences.append(f"It fires since {_clock(state.fired_at)}.")
    if state.turns > 1:
        sentences.append(f"It has changed {state.turns} times since the last message.")
    return sentences


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def _clock(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def to_jsonb(body: Mapping[str, object]) -> str:
    """Return a body as JSON text that PostgreSQL can store as jsonb."""
    return json.dumps(body, ensure_ascii=False).replace("\\u0000", "\\u2400")
