"""The words of a message: a subject, a text for mail, a JSON body for machines. Pure.

A message carries names and counts, never a payload nor the text of an error: mail boxes and chat rooms are
read by more people than the pages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from wakeboard.alerts.finding import Finding, name_of
from wakeboard.alerts.rule_state import News, RuleMemory
from wakeboard.core.rule_types import KINDS, RuleType, title_of
from wakeboard.core.text.redaction import redact, redact_text

VERSION = 1
SUBJECT_CHARACTERS = 200
Cause = News | Literal["test"]
WORDS = {"firing": "fires", "recovered": "has recovered", "reminder": "still fires"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message comes from: the installation's id, its name on the ribbon, the address of its pages."""

    installation: str = ""
    environment: str | None = None
    public_url: str | None = None

    def link(self, path: str) -> str | None:
        """Return the address of a page, None when nobody said where the pages are."""
        return None if self.public_url is None else self.public_url.rstrip("/") + path


@dataclass(frozen=True, slots=True)
class MessageText:
    """What is sent: one line, and a body whose ``text`` is the mail's."""

    subject: str
    body: dict[str, Any]

    @classmethod
    def of(cls, subject: str, body: dict[str, Any]) -> MessageText:
        """Return what is sent of ``subject`` and ``body``: at most SUBJECT_CHARACTERS of the one, and what
        looks like a secret, as in the name of a type or a link's user, is hidden in both."""
        return cls(redact_text(subject)[:SUBJECT_CHARACTERS], redact(body))


def words(
    rule: str,
    kind: str,
    cause: Cause,
    finding: Finding | None,
    memory: RuleMemory,
    place: Place,
    now: datetime,
) -> MessageText:
    """Return the message about ``rule``. ``now`` is the database's clock, an aware datetime."""
    title = title_of(kind)
    name = f"[{name_of(place.environment)}] " if place.environment else ""
    # On a lock screen a test must not look like the alarm.
    head = f"Test, nothing is wrong: {title}" if cause == "test" else f"{title}: {WORDS[cause]}"
    subject = f"{name}{head}"
    link = place.link(_page(KINDS[kind], finding, now) if kind in KINDS else "/alerts")
    sentence = _sentence(cause, finding)
    lines = [sentence, *_history(cause, memory), *_links(link, place), _footer(rule)]
    return MessageText.of(
        subject,
        {
            "version": VERSION,
            "rule": rule,
            "kind": kind,
            "title": title,
            "cause": cause,
            "state": memory.state,
            "sentence": sentence,
            **({} if finding is None else _numbers(finding)),
            "fired_at": _iso(memory.fired_at),
            "recovered_at": _iso(memory.recovered_at),
            "at": _iso(now),
            "environment": place.environment,
            "installation": place.installation,
            "link": link,
            "text": "\n\n".join(line for line in lines if line),
        },
    )


def _page(kind: RuleType, finding: Finding | None, now: datetime) -> str:
    """Return the page that shows what was found; by the moment, as it is opened later."""
    if kind.since is None or finding is None or not finding.firing or finding.within_seconds is None:
        return kind.page
    since = (now - timedelta(seconds=finding.within_seconds)).astimezone(UTC)
    return f"{kind.page}{'&' if '?' in kind.page else '?'}{kind.since}={since:%Y-%m-%dT%H:%M:%SZ}"


def _sentence(cause: Cause, finding: Finding | None) -> str:
    if cause == "test":
        return "This is a test: somebody wants to see whether messages arrive. Nothing is wrong."
    return finding.sentence if finding is not None else ""


def _numbers(finding: Finding) -> dict[str, Any]:
    return {
        "value": finding.value,
        "limit": finding.limit,
        "unit": finding.unit,
        "names": [name_of(name) for name in finding.names],
    }


def _history(cause: Cause, memory: RuleMemory) -> list[str]:
    if cause == "test":
        return []
    told = []
    if cause == "recovered" and memory.fired_at is not None and memory.recovered_at is not None:
        told.append(f"It fired at {_clock(memory.fired_at)} and recovered at {_clock(memory.recovered_at)}.")
    elif memory.fired_at is not None:
        told.append(f"It fires since {_clock(memory.fired_at)}.")
    if memory.turns > 1:
        told.append(f"It has changed {memory.turns} times since the last message.")
    return told


def _links(link: str | None, place: Place) -> list[str]:
    return [] if link is None else [f"Look: {link}\nSilence or change the rule: {place.link('/alerts')}"]


def _footer(rule: str) -> str:
    return f"Wakeboard, rule {name_of(rule)}"


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def _clock(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def stored(body: dict[str, Any]) -> str:
    """Return a body as JSON text that PostgreSQL can keep."""
    return json.dumps(body, ensure_ascii=False).replace("\\u0000", "\\u2400")
