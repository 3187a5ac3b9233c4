"""The overview in one sentence, made of numbers that queries counted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from wakeboard.alerts.finding import Finding
from wakeboard.core.rule_types import title_of
from wakeboard.core.time.clock_skew import AHEAD, was_ahead
from wakeboard.reporting.heartbeats import SILENCE_SECONDS
from wakeboard_dashboard.text.formats import duration, number, plural

START = "Start one: wakeboard worker, or a crontab line with wakeboard tick."
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


# Counting stops here.
CAP = 10_000


@dataclass(frozen=True, slots=True)
class Counts:
    """How many runs are in each state that matters now; those over CAP are CAP + 1.

    ``workers`` are all that are heard, ``slots`` theirs; of them ``claiming`` take new work, in
    ``claiming_slots``, and ``leaving`` drain or stop. These hold the ``finishing`` runs, and the last of them
    was told so at ``left_at``. ``long`` run for over ten minutes, and of these ``overlong`` have run far
    longer than usual, which is told of few types at a time.
    """

    queued: int
    running: int
    failed: int
    dead: int
    stuck: int
    silent: int
    finishing: int
    long: int
    missed: int
    schedules_missed: int
    unfireable: int
    unconfirmed: int
    paused: int
    oldest_due_at: datetime | None
    slots: int
    workers: int
    claiming: int
    claiming_slots: int
    leaving: int
    draining: int
    left_at: datetime | None
    worker_seen_at: datetime | None
    schedules: int
    # The oldest due run of a type that is not paused has failed before: none of those that ``queued`` counts.
    oldest_is_retry: bool = False
    overlong: int = 0

    @property
    def busy(self) -> int:
        """How many slots of claiming workers are taken: what is stuck or finishing takes none of theirs."""
        return max(0, self.running - self.stuck - self.finishing)

    @property
    def stopping(self) -> int:
        """How many of those that leave stop; the others drain."""
        return self.leaving - self.draining

    @property
    def attention(self) -> int:
        """How many things need a person: runs that are dead, stuck or overlong, missed fires, and so on."""
        unwell = self.dead + self.stuck + self.overlong
        return unwell + self.missed + self.unfireable + self.unconfirmed


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether all is well, the words that say so, and the rest of the sentence."""

    is_good: bool
    strong: str
    rest: str


def capped(count: int) -> str:
    """Return a count as text; one that was stopped at the cap says so: ``10 000+``."""
    return number(CAP) + "+" if count > CAP else number(count)


def verdict(counts: Counts, rising: Finding, firing: Sequence[str], now: datetime) -> Verdict:
    """Return the verdict at ``now``; ``firing`` are the kinds of the alert rules that fire."""
    problems = list_problems(counts, rising, firing)
    if counts.workers == 0:
        return _without_workers(counts, problems, now)
    if counts.claiming == 0:
        return _without_claims(counts, problems)
    busy, paused = _busy(counts), _counted(counts.paused, "type is paused", "types are paused")
    if problems:
        others = f"{paused}, everything else is normal." if paused else "everything else is normal."
        return Verdict(False, f"{_listed(problems)};", f"{others} {busy}")
    if paused:
        return Verdict(True, f"{_listed([paused])};", f"nothing else needs you. {busy}")
    if counts.failed:
        again = f"{plural(counts.failed, 'run')} failed and will be tried again."
        return Verdict(True, "Nothing needs you.", f"{again} {busy}")
    return Verdict(True, "All is well.", busy)


def _busy(counts: Counts) -> str:
    busy, slots = capped(counts.busy), plural(counts.claiming_slots, "slot")
    finishing = f" {_finishing(counts)}." if counts.finishing else ""
    if counts.busy > counts.claiming_slots:
        return f"{busy} run, more than the {slots} of live workers.{finishing}"
    silent = f" {capped(counts.silent)} held by silent workers (Leases)." if counts.silent else ""
    return f"{busy} of {slots} busy.{finishing}{silent}"


def _finishing(counts: Counts) -> str:
    """Return ``2 more run on workers that are draining``."""
    more = "more runs" if counts.finishing == 1 else "more run"
    how = " or ".join(word for word, count in _leaving(counts) if count)
    return f"{capped(counts.finishing)} {more} on workers that are {how}"


def _leaving(counts: Counts) -> tuple[tuple[str, int], ...]:
    return ("draining", counts.draining), ("stopping", counts.stopping)


def leaving_in_words(counts: Counts) -> str:
    """Return ``1 draining, 2 stopping`` of the workers that take nothing new; nothing without any."""
    return ", ".join(f"{number(count)} {word}" for word, count in _leaving(counts) if count)


def slots_in_words(counts: Counts) -> str:
    """Return what slots there are for what runs: ``of 8 slots on 2 workers, 1 draining``."""
    leaving = leaving_in_words(counts)
    if not counts.claiming and leaving:
        return f"no worker takes new work: {leaving}"
    others = counts.stuck or counts.finishing
    busy = f"{number(counts.busy)} " if others else ""
    of = "of" if counts.busy <= counts.claiming_slots else "more than the"
    slots = f"{plural(counts.claiming_slots, 'slot')} on {plural(counts.claiming, 'worker')}"
    return f"{busy}{of} {slots}{f', {leaving}' if leaving else ''}"


def list_problems(counts: Counts, rising: Finding, firing: Sequence[str]) -> list[str]:
    """Return a clause for each problem, in the order of the tiles."""
    rise = f"failures rise ({number(rising.value)} in the last hour)" if rising.firing else ""
    clauses = (
        _counted(counts.dead, "run is dead", "runs are dead"),
        _counted(counts.stuck, "run is stuck", "runs are stuck"),
        _counted(counts.overlong, "run takes far longer than usual", "runs take far longer than usual"),
        rise,
        _counted(counts.schedules_missed, "schedule missed its time", "schedules missed their time"),
        _counted(counts.unfireable, "schedule cannot fire", "schedules cannot fire"),
        _counted(counts.unconfirmed, "effect is unconfirmed", "effects are unconfirmed"),
        *(f"the alert “{title_of(kind)}” fires" for kind in other_rules(counts, rising, firing)),
    )
    return [clause for clause in clauses if clause]


def other_rules(counts: Counts, rising: Finding, firing: Sequence[str]) -> list[str]:
    """Return the kinds of ``firing``, each once, whose problem no number shows already."""
    counted = {
        "dead_runs": counts.dead,
        "stuck_leases": counts.stuck,
        "failures_rise": rising.firing,
        "missed_runs": counts.schedules_missed,
        # Asked less often than these are counted: once all can fire again, the rule is what is behind.
        "cannot_fire": True,
    }
    return [kind for kind in dict.fromkeys(firing) if not counted.get(kind)]


def _counted(count: int, one: str, many: str) -> str:
    """Return ``two runs are dead``, nothing for none."""
    if not count:
        return ""
    words = WORDS[count] if count < len(WORDS) else capped(count)
    return f"{words} {one if count == 1 else many}"


def _listed(clauses: Sequence[str]) -> str:
    """Return ``One run is dead, two are stuck and failures rise``."""
    first, last = ", ".join(clauses[:-1]), clauses[-1]
    sentence = f"{first} and {last}" if first else last
    return sentence[:1].upper() + sentence[1:]


def _without_workers(counts: Counts, problems: Sequence[str], now: datetime) -> Verdict:
    """Return the verdict where no worker lives; ``problems`` come after it."""
    waiting = f"{capped(counts.queued)} queued." if counts.queued else "Nothing is queued."
    besides = f" {_listed(problems)}." if problems else ""
    if counts.worker_seen_at is None:
        start = "Start one: wakeboard worker, or wakeboard up."
        return Verdict(False, "No worker has ever run here.", f"{waiting} {start}{besides}")
    if counts.schedules == 0 and counts.queued == 0:
        return Verdict(not problems, "No worker is running", f"and nothing waits for one.{besides}")
    if was_ahead(counts.worker_seen_at, now):
        unknown = f"{AHEAD}: nobody knows when the last one was here."
        return Verdict(False, "No worker is running.", f"{unknown} {waiting} {START}{besides}")
    silent = (now - counts.worker_seen_at).total_seconds()
    if counts.schedules and silent < SILENCE_SECONDS:
        gone = f"right now; the last one was here {duration(silent)} ago."
        return Verdict(not problems, "No worker is running", f"{gone} {waiting}{besides}")
    return Verdict(False, "No worker is running.", f"{waiting} {START}{besides}")


def _without_claims(counts: Counts, problems: Sequence[str]) -> Verdict:
    """Return the verdict where workers live and none claims; ``problems`` come after it."""
    who = " and ".join(
        _counted(count, f"is {word}", f"are {word}") for word, count in _leaving(counts) if count
    )
    if counts.oldest_due_at is not None:
        waiting = f"Due work waits, {capped(counts.queued)} queued."
    else:
        waiting = f"Nothing is due{', paused types aside' if counts.paused else ''}."
    running = "runs" if counts.finishing == 1 else "run"
    rest = f" {capped(counts.finishing)} still {running} there." if counts.finishing else ""
    undrain = "Undrain one (Workers), or start" if counts.draining else "Start"
    advice = f"{undrain} another: wakeboard worker."
    besides = f" {_listed(problems)}." if problems else ""
    is_good = counts.oldest_due_at is None and not problems
    return Verdict(is_good, "No worker takes new work:", f"{who}. {waiting}{rest} {advice}{besides}")
