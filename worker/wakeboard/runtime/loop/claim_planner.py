"""What to claim next: how many runs of which types, in which order, and whether a claim is wanted at all.

A run is claimed for a free slot. Runs of quick types are claimed ahead of need, about a quarter of a second's
work per slot. A wrong guess costs little: a run that waits for long, or behind a long run, is given back
(``slots``), and a list shows which runs with a single try have not begun (``queue.engine.unbegun``). So a
type counts as quick until its last few runs show otherwise, and how many are claimed ahead follows from all
runs of the worker. Nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

from wakeboard.runtime.loop.channel import Rows
from wakeboard.runtime.loop.claim_cursor import JOB_TYPE, PAYLOAD
from wakeboard.runtime.loop.ended_attempt import EndedAttempt
from wakeboard.runtime.loop.in_flight import Policy, RunInFlight

# One statement text per size (a literal LIMIT), so that few are prepared.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 150, 200, 300, 500, 750)
# The most runs claimed ahead for one slot and for all slots; with more slots than that, one for each. They
# are what a killed worker leaves to its leases.
AHEAD_PER_SLOT, AHEAD = 1125, 2250
# Nothing is claimed ahead beyond so many runs, with those that have ended and are not written yet, and
# nothing at all while so many wait to be written.
MOST_IN_FLIGHT = 4500
# The most characters of payloads claimed ahead. Claims with few characters do not change the estimate.
CHARACTERS_AHEAD, FEW_CHARACTERS = 32_000_000, 1_000_000
# So many runs justify a claim ahead. What is left must last until the claim is answered.
ENOUGH_AHEAD = 750
AHEAD_SECONDS = 0.25
# A type is quick while its last runs took less on average. A long run counts as LONG_SECONDS at most, so that
# two quick ones make up for it and a short stall of the machine does not slow claims down for long.
QUICK_SECONDS, LONG_SECONDS = 0.020, 0.125
# Runs of a type are brief when they take less than this on average.
BRIEF_SECONDS = 0.002
# The weight of one run in the average of its type, and in that of the worker.
TYPE_WEIGHT, WORKER_WEIGHT = 0.2, 0.02
# The share of single tries of a type decays with each other run, and counts as zero below the floor.
ONLY_TRY_DECAY, ONLY_TRY_FLOOR = 0.98, 0.05
# How long a type with single tries is not claimed ahead after its list could not be kept.
UNLISTED_SECONDS = 60.0
# While quick runs keep all slots busy, two claims in five ask all types: one by age, one by priority.
OLDEST_EVERY = 5
ALL_TYPES_ROUNDS = (1, OLDEST_EVERY - 1)
# Types without a limit that had no work come first in one round of so many.
EMPTY_EVERY = 8
# The estimate of payloads decays after a claim with lighter ones, and after a claim with none of the type.
PAYLOAD_DECAY, ABSENT_DECAY = 0.8, 0.98
NEVER = -1


class ClaimDemand:
    """Whether the next claim is wanted, allowed and useful. Only the loop's thread uses it."""

    def __init__(self, *, is_tick: bool = False) -> None:
        """``is_tick``: the worker ends when no work is left, so it claims again after each run that ends."""
        self._is_tick = is_tick
        # Whether there may be work.
        self.is_wanted = True
        # The round of the duties after which a claim came back empty, NEVER when a run has ended since.
        self.empty_since_round = NEVER
        # Why claims cannot be made, and why what is claimed cannot run.
        self.error: str | None = None
        self.block_reason: str | None = None
        self._blocked_at = 0.0
        self.not_before = 0.0

    def wake(self) -> None:
        """Claim soon: there may be work."""
        self.is_wanted = True

    def note_end(self, *, makes_room: bool) -> None:
        """Note that a run is written. Room under a limit may be filled; a tick must look once more."""
        self.empty_since_round = NEVER
        self.is_wanted = self.is_wanted or makes_room or self._is_tick

    def pause(self, seconds: float) -> None:
        """Claim nothing for ``seconds``."""
        self.not_before = max(self.not_before, monotonic() + seconds)

    def block(self, reason: str, seconds: float) -> None:
        """Claim nothing for ``seconds`` because no run can start. Until ``unblock`` no claim is a success."""
        if self.block_reason is None:
            self._blocked_at = monotonic()
        self.block_reason = reason
        self.pause(seconds)

    def unblock(self) -> None:
        """Runs can start again."""
        self.block_reason, self.not_before = None, 0.0

    @property
    def blocked_seconds(self) -> float:
        """For how long no run could start, 0.0 when they can."""
        return 0.0 if self.block_reason is None else monotonic() - self._blocked_at


@dataclass(slots=True)
class Pace:
    """Moving averages of one type: how long its runs take, the share of single tries, the payload's size.

    A type without runs so far counts as quick.
    """

    mean_seconds: float = 0.0
    only_try_share: float = 0.0
    payload_characters: float = 0.0

    def observe(self, seconds: float, *, is_only_try: bool) -> None:
        """Add a run that took, or has taken so far, ``seconds``."""
        self.mean_seconds += TYPE_WEIGHT * (min(seconds, LONG_SECONDS) - self.mean_seconds)
        self.only_try_share = 1.0 if is_only_try else self.only_try_share * ONLY_TRY_DECAY

    def observe_payloads(self, mean_characters: float) -> None:
        """Add the payloads of one claim; after heavy ones the estimate falls slowly."""
        self.payload_characters = max(mean_characters, self.payload_characters * PAYLOAD_DECAY)

    @property
    def is_quick(self) -> bool:
        """Whether the last runs took less than 20 ms on average."""
        return self.mean_seconds < QUICK_SECONDS


@dataclass(slots=True)
class Load:
    """How many runs one slot has not reported yet, and how many of them are slow."""

    outstanding: int = 0
    slow: int = 0
    slot: int = 0


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """One claim to make: up to ``limit`` runs of ``types`` and of limited types, then ``ahead`` of ``quick``.

    ``slots``: for how many slots ``ahead`` was computed; a slow run among the first takes one of them.
    ``limited_ahead``: how many to claim of each quick type with a limit, whatever slots are free.
    ``unlimited_first``: whether types without a limit are asked before those with one.
    ``listed``: of which types the claimed runs are listed as not begun.
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
    """The planning of one worker's claims.

    ``fresh_types``: types with a process for each run; none of these is claimed ahead.
    ``has_more``: whether the last claim of types without a limit brought any run.
    """

    slots: int
    demand: ClaimDemand = field(default_factory=ClaimDemand)
    types: list[str] = field(default_factory=list)
    policies: dict[str, Policy] = field(default_factory=dict)
    limited_types: list[str] = field(default_factory=list)
    fresh_types: frozenset[str] = frozenset()
    has_more: bool = False
    rounds: int = 0
    _paces: dict[str, Pace] = field(default_factory=dict)
    # The average time of runs of quick types, and how many runs are written: ended or given back.
    _mean_seconds: float = 0.0
    _written: int = 0
    _has_heavy_payloads: bool = False
    # Types some of whose runs have a single try, and until when one is not claimed ahead.
    _only_try_types: set[str] = field(default_factory=set)
    _only_try_pauses: dict[str, float] = field(default_factory=dict)

    def set_types(self, policies: Sequence[Mapping[str, object]]) -> None:
        """Use the types that the handlers registered, by their policies."""
        self.types = sorted(str(policy["name"]) for policy in policies)
        self.fresh_types = frozenset(str(policy["name"]) for policy in policies if policy.get("fresh"))
        names = ("max_attempts", "timeout_seconds", "lease_seconds", "backoff", "memory_mb")
        self.policies = {
            str(policy["name"]): Policy(**{name: policy[name] for name in names})  # type: ignore[arg-type]
            for policy in policies
        }
        self._only_try_types |= {name for name, policy in self.policies.items() if policy.max_attempts == 1}

    def observe(self, run: RunInFlight, seconds: float) -> None:
        """Learn from a run that took, or has taken so far, ``seconds``."""
        pace = self._pace(run.assignment.job_type)
        is_only_try = run.max_attempts == 1
        pace.observe(seconds, is_only_try=is_only_try)
        if is_only_try:
            self._only_try_types.add(run.assignment.job_type)
        if run.assignment.is_listed and not pace.is_quick:
            # Without the list its runs would be quick again, and slow with it.
            self.pause_only_tries(run.assignment.job_type)
        if pace.mean_seconds < QUICK_SECONDS:
            self._mean_seconds += WORKER_WEIGHT * (seconds - self._mean_seconds)

    def observe_all(self, ended: Sequence[EndedAttempt]) -> None:
        """Learn from ended attempts, in their order."""
        for one in ended:
            self.observe(one.run, one.took_seconds)

    def count_written(self, runs: int) -> None:
        """Note that so many runs are written: the database keeps up with them."""
        self._written += runs

    def note_only_try(self, job_type: str) -> None:
        """List claimed runs of ``job_type`` from now on: a run with a single try was found among them."""
        self._pace(job_type).only_try_share = 1.0
        self._only_try_types.add(job_type)

    def pause_only_tries(self, job_type: str) -> bool:
        """Claim no runs of ``job_type`` ahead for a minute: striking them off the list is slow or fails.

        Return whether the pause is new.
        """
        now = monotonic()
        is_new = now >= self._only_try_pauses.get(job_type, 0.0)
        self._only_try_pauses[job_type] = now + UNLISTED_SECONDS
        return is_new

    def observe_payloads(self, rows: Rows) -> None:
        """Learn from a claim's rows how large the payloads of their types are."""
        characters = sum([len(row[PAYLOAD]) for row in rows])
        if characters < FEW_CHARACTERS and not self._has_heavy_payloads:
            return
        sizes: dict[str, list[int]] = {}
        for row in rows:
            sizes.setdefault(row[JOB_TYPE], []).append(len(row[PAYLOAD]))
        for job_type, type_sizes in sizes.items():
            self._pace(job_type).observe_payloads(sum(type_sizes) / len(type_sizes))
        for job_type, pace in self._paces.items():
            if job_type not in sizes:
                pace.payload_characters *= ABSENT_DECAY
        self._has_heavy_payloads = any(
            pace.payload_characters * AHEAD > CHARACTERS_AHEAD for pace in self._paces.values()
        )

    def _pace(self, job_type: str) -> Pace:
        pace = self._paces.get(job_type)
        if pace is None:
            pace = self._paces[job_type] = Pace()
        return pace

    def is_quick(self, job_type: str) -> bool:
        """Return whether runs of ``job_type`` may be claimed ahead."""
        if job_type in self.fresh_types or monotonic() < self._only_try_pauses.get(job_type, 0.0):
            return False
        return self._pace(job_type).is_quick

    def brief_types(self, job_types: Iterable[str]) -> dict[str, float]:
        """Return which of ``job_types`` have a limit and brief runs, with the average seconds of a run.

        Such runs may wait for one another: no others are claimed meanwhile.
        """
        means = {name: self._pace(name).mean_seconds for name in job_types if name in self.limited_types}
        return {
            name: seconds
            for name, seconds in means.items()
            if 0 < seconds < BRIEF_SECONDS and self.is_quick(name)
        }

    def are_quick(self, rows: Rows) -> bool:
        """Return whether all ``rows`` of a claim are of types that may be claimed ahead."""
        return all(map(self.is_quick, {row[JOB_TYPE] for row in rows}))

    def plan(self, loads: Sequence[Load], *, coming: int = 0, unwritten: int = 0) -> ClaimPlan | None:
        """Return the next claim, None while the slots have enough.

        Limited types are asked beside the others for free slots, and in two claims of five when quick runs
        keep all slots busy. Each claim also claims ahead: the runs of a claim for free slots alone would be
        done before the next claim, so there would never be any ahead.

        Args:
            loads: What each slot has to do.
            coming: How many quick runs are claimed and not handed to the slots yet.
            unwritten: How many runs have ended and are not written yet.
        """
        if unwritten >= MOST_IN_FLIGHT:
            return None
        free = max(0, sum(load.outstanding == 0 for load in loads) - coming)
        open_ = [load for load in loads if load.slow == 0]
        quick = self._quick_types()
        ahead = self._ahead(open_, quick, coming, unwritten) if free or self.has_more else 0
        asks_all = ahead > 0 and self.rounds % OLDEST_EVERY in ALL_TYPES_ROUNDS
        has_others = len(quick) < len(self.types)
        if (free and (has_others or not ahead)) or (asks_all and has_others):
            for_slots = free or len(open_)
            plan = self._plan(self.types, for_slots, self._next_limited_types())
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
        is_brief = bool(limited) and len(self.brief_types(limited)) == len(limited)
        turns = EMPTY_EVERY if is_brief and not self.has_more else 2
        return ClaimPlan(
            types, size_of(wanted), self.rounds % OLDEST_EVERY == 0, limited, self.rounds,
            unlimited_first=self.rounds % turns == 1, listed=self._listed_types(),
        )  # fmt: skip

    def _listed_types(self) -> frozenset[str]:
        """Return the quick types with single tries: a run whose start is lost would lose its only try."""
        self._only_try_types = {name for name in self._only_try_types if self._has_only_tries(name)}
        return frozenset(name for name in self._only_try_types if self.is_quick(name))

    def _has_only_tries(self, job_type: str) -> bool:
        policy = self.policies.get(job_type)
        is_only_try = policy is not None and policy.max_attempts == 1
        return is_only_try or self._pace(job_type).only_try_share >= ONLY_TRY_FLOOR

    def _quick_types(self) -> Sequence[str]:
        """Return the types without a limit that may be claimed ahead."""
        return [name for name in self.types if self.is_quick(name) and name not in self.limited_types]

    def _ahead(self, open_: Sequence[Load], quick: Sequence[str], coming: int, unwritten: int) -> int:
        """Return how many quick runs to claim ahead, 0 while most of those claimed before are left.

        A slot gets no more than twice the number of runs written so far: a new worker starts small.
        """
        if not quick or not open_:
            return 0
        most = min(AHEAD_PER_SLOT, AHEAD // self.slots, int(AHEAD_SECONDS / max(self._mean_seconds, 1e-6)))
        if self._has_heavy_payloads:
            heaviest = max(self._paces[name].payload_characters for name in quick)
            most = min(most, int(CHARACTERS_AHEAD / max(heaviest, 1.0)) // self.slots)
        target = max(1, min(most, 2 * self._written))
        ahead = sum(load.outstanding for load in open_) + coming
        wanted = min(target * len(open_), MOST_IN_FLIGHT - unwritten) - ahead
        return wanted if wanted >= min(ENOUGH_AHEAD, target * len(open_) / 2) else 0

    def _next_limited_types(self) -> Sequence[str]:
        """Return up to eight types with a limit, others first each round."""
        start = self.rounds % len(self.limited_types) if self.limited_types else 0
        return [*self.limited_types[start:], *self.limited_types[:start]][:8]


def size_of(wanted: int) -> int:
    """Return the largest prepared size that does not exceed ``wanted``."""
    return max(size for size in SIZES if size <= max(1, wanted))
