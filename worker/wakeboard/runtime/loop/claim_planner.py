"""What to claim next: how many, of which types, in which order. Decides; sends nothing.

A run is claimed for a free slot. Types whose runs are quick are claimed ahead of need, about a quarter of a
second's worth per slot. A wrong guess is cheap: what waits for long, or behind a run that goes on for long,
is given back (``slots``), and which runs with a single try have not begun stands on a list
(``engine.unbegun``). So a type counts as quick until its runs say otherwise, the last few decide, and how
many are claimed ahead is learned from all runs of the worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

from wakeboard.runtime.loop.channel import Rows
from wakeboard.runtime.loop.claim_cursor import JOB_TYPE, PAYLOAD
from wakeboard.runtime.loop.ended_attempt import EndedAttempt
from wakeboard.runtime.loop.in_flight import Policy, RunInFlight

# One statement text per size, so that few are prepared; each is a literal LIMIT.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 150, 200, 300, 500, 750)
# So many at most are claimed ahead for one slot and for all (for more slots than that, one for each): what a
# killed worker leaves to its leases. Nothing is claimed ahead beyond MOST_HELD together with what has ended
# and is not written yet, and nothing at all while so much waits to be written.
AHEAD_PER_SLOT, AHEAD = 1125, 2250
MOST_HELD = 4500
# So many letters of payloads at most are claimed ahead; a claim with fewer than some tells nothing new.
LETTERS_AHEAD, FEW_LETTERS = 32_000_000, 1_000_000
# A claim ahead is worth its statement for so many; what is left must last until it has come.
ENOUGH_AHEAD = 750
AHEAD_SECONDS = 0.25
# A type is quick while its last runs took less on average. Of a long one no more than this counts, so that
# two quick ones make up for it: what slows the machine down for a moment slows claims down no longer.
QUICK_SECONDS, LONG_SECONDS = 0.020, 0.125
# What lasts no longer on average is over in a moment.
BRIEF_SECONDS = 0.002
# The weight of one run in what is known of its type, and of the worker.
OF_TYPE, OF_WORKER = 0.2, 0.02
# What is left, with each other run, of the knowledge that runs of a type have one try; until so little.
FADED, FORGOTTEN_TRY = 0.98, 0.05
# So long nothing is claimed ahead that is to be listed, after that could not be kept.
UNLISTED_SECONDS = 60.0
OLDEST_EVERY = 5
# While quick runs keep all slots busy, the others are asked for by age, and once in between by priority.
TURNS_OF_ALL = (1, OLDEST_EVERY - 1)
# Types without a limit that had nothing come first in one round of so many.
EMPTY_EVERY = 8
# What is left of the weight of payloads after a claim with lighter ones, and after one with none of the type.
LIGHTER, FORGOTTEN = 0.8, 0.98


@dataclass(slots=True)
class Pace:
    """How long one type's runs take, whether they have one try, how large their payloads are.

    The last few runs weigh most. A type that is not known yet counts as quick.
    """

    mean_seconds: float = 0.0
    only_try_share: float = 0.0
    letters: float = 0.0

    def observe(self, seconds: float, *, is_only_try: bool) -> None:
        """Take a run into account that took, or has taken by now, so many seconds."""
        self.mean_seconds += OF_TYPE * (min(seconds, LONG_SECONDS) - self.mean_seconds)
        self.only_try_share = 1.0 if is_only_try else self.only_try_share * FADED

    def weigh(self, letters: float) -> None:
        """Take into account how many letters payloads have on average; what was heavy is soon light again."""
        self.letters = max(letters, self.letters * LIGHTER)

    @property
    def is_quick(self) -> bool:
        """Whether the last runs took less than 20 ms on average."""
        return self.mean_seconds < QUICK_SECONDS


@dataclass(slots=True)
class Load:
    """What one slot was sent and has not reported."""

    outstanding: int = 0
    slow: int = 0
    slot: int = 0


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """One claim to make: up to ``limit`` runs of ``types`` and of limited types, then ``ahead`` of ``quick``.

    ``slots``: how many slots what is claimed ahead was reckoned for; a slow run among the first takes one.
    ``limited_ahead``: how many to claim of each quick type with a limit, whatever slots are free.
    ``unlimited_first``: whether types without a limit are asked before those with one. ``listed``: of which
    types what is claimed is listed as not begun.
    """

    types: Sequence[str]
    limit: int
    oldest_first: bool = False
    limited: Sequence[str] = ()
    round: int = 0
    quick: Sequence[str] = ()
    ahead: int = 0
    slots: int = 1
    limited_ahead: Mapping[str, int] = field(default_factory=dict)
    unlimited_first: bool = True
    listed: frozenset[str] = frozenset()

    def ahead_beside(self, rows: Rows) -> int:
        """Return how many to claim ahead when ``rows`` were claimed for free slots."""
        slow = sum(row[JOB_TYPE] not in self.quick for row in rows)
        return self.ahead * max(0, self.slots - slow) // self.slots


@dataclass(slots=True)
class ClaimPlanner:
    """The planning of one worker's claims."""

    slots: int
    types: list[str] = field(default_factory=list)
    policies: dict[str, Policy] = field(default_factory=dict)
    limited: list[str] = field(default_factory=list)
    # Types whose runs have a process each: to send one ahead is to send it twice.
    fresh: frozenset[str] = frozenset()
    # Whether the last claim of types without a limit brought anything: else there is nothing to claim ahead.
    has_more: bool = False
    rounds: int = 0
    _paces: dict[str, Pace] = field(default_factory=dict)
    # How long the runs of quick types take on average, and how many runs are written: ended or given back.
    _mean_seconds: float = 0.0
    _written: int = 0
    _is_heavy: bool = False
    # Types whose runs, or some of them, have a single try; what is claimed of these is listed, from then on.
    _only_tries: set[str] = field(default_factory=set)
    _only_tries_from: dict[str, float] = field(default_factory=dict)

    def learn(self, policies: Sequence[Mapping[str, object]]) -> None:
        """Take over the types that the handlers registered."""
        self.types = sorted(str(policy["name"]) for policy in policies)
        self.fresh = frozenset(str(policy["name"]) for policy in policies if policy.get("fresh"))
        names = ("max_attempts", "timeout_seconds", "lease_seconds", "backoff", "memory_mb")
        self.policies = {
            str(policy["name"]): Policy(**{name: policy[name] for name in names})  # type: ignore[arg-type]
            for policy in policies
        }
        self._only_tries |= {name for name, policy in self.policies.items() if policy.max_attempts == 1}

    def observe(self, run: RunInFlight, seconds: float) -> None:
        """Learn from a run that took, or has taken by now, so many seconds."""
        pace = self._pace(run.assignment.job_type)
        is_only_try = run.max_attempts == 1
        pace.observe(seconds, is_only_try=is_only_try)
        if is_only_try:
            self._only_tries.add(run.assignment.job_type)
        if run.assignment.is_listed and not pace.is_quick:
            # Without the list they would be quick again, and with it slow.
            self.pause_only_tries(run.assignment.job_type)
        if pace.mean_seconds < QUICK_SECONDS:
            self._mean_seconds += OF_WORKER * (seconds - self._mean_seconds)

    def observe_all(self, ended: Sequence[EndedAttempt]) -> None:
        """Learn from ended runs, in their order."""
        for one in ended:
            self.observe(one.run, one.took_seconds)

    def wrote(self, runs: int) -> None:
        """Take into account that so many runs are written: the database takes what it is given."""
        self._written += runs

    def met_only_try(self, job_type: str) -> None:
        """List what is claimed of ``job_type``, for a while: a run with one try was among what came."""
        self._pace(job_type).only_try_share = 1.0
        self._only_tries.add(job_type)

    def pause_only_tries(self, job_type: str) -> bool:
        """Claim nothing of a type with single tries ahead for a while: striking off takes long or fails.

        Return whether that is new.
        """
        now = monotonic()
        is_new = now >= self._only_tries_from.get(job_type, 0.0)
        self._only_tries_from[job_type] = now + UNLISTED_SECONDS
        return is_new

    def weigh(self, rows: Rows) -> None:
        """Learn from the rows of a claim how large the payloads of their types are."""
        letters = sum([len(row[PAYLOAD]) for row in rows])
        if letters < FEW_LETTERS and not self._is_heavy:
            return
        sizes: dict[str, list[int]] = {}
        for row in rows:
            sizes.setdefault(row[JOB_TYPE], []).append(len(row[PAYLOAD]))
        for job_type, found in sizes.items():
            self._pace(job_type).weigh(sum(found) / len(found))
        for job_type, pace in self._paces.items():
            if job_type not in sizes:
                pace.letters *= FORGOTTEN
        self._is_heavy = any(pace.letters * AHEAD > LETTERS_AHEAD for pace in self._paces.values())

    def _pace(self, job_type: str) -> Pace:
        pace = self._paces.get(job_type)
        if pace is None:
            pace = self._paces[job_type] = Pace()
        return pace

    def is_quick(self, job_type: str) -> bool:
        """Return whether runs of ``job_type`` may be claimed ahead."""
        if job_type in self.fresh or monotonic() < self._only_tries_from.get(job_type, 0.0):
            return False
        return self._pace(job_type).is_quick

    def brief(self, job_types: Iterable[str]) -> dict[str, float]:
        """Return those of ``job_types`` that have a limit and whose runs are known to be over in a moment,
        and how long each lasts. They may wait for one another: no others are claimed meanwhile."""
        known = {name: self._pace(name).mean_seconds for name in job_types if name in self.limited}
        return {
            name: seconds
            for name, seconds in known.items()
            if 0 < seconds < BRIEF_SECONDS and self.is_quick(name)
        }

    def are_quick(self, rows: Rows) -> bool:
        """Return whether all ``rows`` of a claim are of types that may be claimed ahead."""
        return all(map(self.is_quick, {row[JOB_TYPE] for row in rows}))

    def plan(self, loads: Sequence[Load], *, coming: int = 0, unwritten: int = 0) -> ClaimPlan | None:
        """Return the next claim, None while the slots have enough.

        ``coming``: so many quick runs are claimed and not with the slots yet; ``unwritten``: so many have
        ended and are not written yet.

        Limited types are claimed beside the others for free slots, and with two claims in five when quick
        runs keep all slots busy. What may be claimed ahead is so with each: a claim for free slots alone is
        worked off before the next one, and so there would never be anything ahead.
        """
        if unwritten >= MOST_HELD:
            return None
        free = max(0, sum(load.outstanding == 0 for load in loads) - coming)
        open_ = [load for load in loads if load.slow == 0]
        quick = self._quick()
        ahead = self._ahead(open_, quick, coming, unwritten) if free or self.has_more else 0
        is_turn_of_all = ahead > 0 and self.rounds % OLDEST_EVERY in TURNS_OF_ALL
        has_others = len(quick) < len(self.types)
        if (free and (has_others or not ahead)) or (is_turn_of_all and has_others):
            for_slots = free or len(open_)
            plan = self._plan(self.types, for_slots, self._rotated())
            limited_ahead = {
                name: self._ahead(open_, [name], coming, unwritten)
                for name in plan.limited
                if self.is_quick(name) and self._pace(name).mean_seconds > 0
            }
            return replace(
                plan, quick=quick, ahead=max(0, ahead - for_slots), slots=max(1, len(open_)),
                limited_ahead=limited_ahead,
            )  # fmt: skip
        return self._plan(quick, ahead) if ahead else None

    def _plan(self, types: Sequence[str], wanted: int, limited: Sequence[str] = ()) -> ClaimPlan:
        """Count the round; every fifth claim goes by age alone."""
        self.rounds += 1
        # Where runs under a limit take long, an urgent run of another type must not wait for eight of them.
        is_brief = bool(limited) and len(self.brief(limited)) == len(limited)
        turns = EMPTY_EVERY if is_brief and not self.has_more else 2
        return ClaimPlan(
            types, size_of(wanted), self.rounds % OLDEST_EVERY == 0, limited, self.rounds,
            unlimited_first=self.rounds % turns == 1, listed=self._listed(),
        )  # fmt: skip

    def _listed(self) -> frozenset[str]:
        """Return the types that may be claimed ahead because it is known which of their runs have begun: a
        start that is lost costs them their only try."""
        self._only_tries = {name for name in self._only_tries if self._has_only_tries(name)}
        return frozenset(name for name in self._only_tries if self.is_quick(name))

    def _has_only_tries(self, job_type: str) -> bool:
        policy = self.policies.get(job_type)
        is_so = policy is not None and policy.max_attempts == 1
        return is_so or self._pace(job_type).only_try_share >= FORGOTTEN_TRY

    def _quick(self) -> Sequence[str]:
        """Return the types that may be claimed ahead."""
        return [name for name in self.types if self.is_quick(name) and name not in self.limited]

    def _ahead(self, open_: Sequence[Load], quick: Sequence[str], coming: int, unwritten: int) -> int:
        """Return how many quick runs to claim ahead, 0 while too little of what was ahead is used up.

        No more per slot than twice as many as are written: a worker that has just begun has more with each
        claim.
        """
        if not quick or not open_:
            return 0
        most = min(AHEAD_PER_SLOT, AHEAD // self.slots, int(AHEAD_SECONDS / max(self._mean_seconds, 1e-6)))
        if self._is_heavy:
            heaviest = max(self._paces[name].letters for name in quick)
            most = min(most, int(LETTERS_AHEAD / max(heaviest, 1.0)) // self.slots)
        target = max(1, min(most, 2 * self._written))
        ahead = sum(load.outstanding for load in open_) + coming
        wanted = min(target * len(open_), MOST_HELD - unwritten) - ahead
        return wanted if wanted >= min(ENOUGH_AHEAD, target * len(open_) / 2) else 0

    def _rotated(self) -> Sequence[str]:
        start = self.rounds % len(self.limited) if self.limited else 0
        return [*self.limited[start:], *self.limited[:start]][:8]


def size_of(wanted: int) -> int:
    """Return the largest prepared size that does not exceed ``wanted``."""
    return max(size for size in SIZES if size <= max(1, wanted))
