"""The processes that ``up`` keeps going: each in a group of its own, restarted after a crash, ended together.

Knows nothing of what they do, but for one thing: exit code 2 means wrong use, which no restart mends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from wakeboard.config.working_directory import place
from wakeboard.core.process.process_tree import die_with_parent

WRONG_USE = 2
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
# Whoever lived this long had started well: the next crash is a new story.
SETTLED_SECONDS = 60.0


@dataclass
class Sibling:
    """One process and how it fares."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    due: float = 0.0
    wait_seconds: float = FIRST_WAIT_SECONDS

    def start(self) -> None:
        """Start it, in a group of its own so that a Ctrl-C in the terminal reaches us alone."""
        self.started = time.monotonic()
        us = os.getpid()
        self.process = subprocess.Popen(
            self.command,
            env=dict(self.environment),
            # Ours may have been removed since.
            cwd=place(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # Should we be killed, it ends as after SIGTERM instead of holding the port for ever.
            preexec_fn=lambda: die_with_parent(us, signal.SIGTERM),
        )

    def ended(self) -> int | None:
        """Return the exit code (negative: a signal) of a process that has just ended, else None."""
        if self.process is None or not self._has_exited(self.process.pid):
            return None
        # Its id is not free before wait(), so this group is still its own.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.process = None
        return code

    @staticmethod
    def _has_exited(pid: int) -> bool:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def ask(self, signal_number: int) -> None:
        """Send a signal to the process itself: it knows its own children."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal_number)

    def kill(self) -> None:
        """Kill it with its whole group."""
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)


@dataclass
class Family:
    """All of them. ``tell`` gets a sentence when one ends and when it is started again."""

    tell: Callable[[str], None]
    members: list[Sibling] = field(default_factory=list)

    def add(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start another process called ``name``."""
        self.members.append(Sibling(name, command, environment))
        self.members[-1].start()

    def look(self) -> int | None:
        """Note who ended and start again whose time has come; return 2 when one was used wrongly."""
        for member in self.members:
            code = member.ended()
            if code == WRONG_USE:
                self.tell(f"The {member.name} cannot run like this; see the line above.")
                return WRONG_USE
            if code is not None:
                self._plan(member, code)
            elif member.process is None and time.monotonic() >= member.due:
                member.start()
        return None

    def _plan(self, member: Sibling, code: int) -> None:
        if time.monotonic() - member.started > SETTLED_SECONDS:
            member.wait_seconds = FIRST_WAIT_SECONDS
        member.due = time.monotonic() + member.wait_seconds
        self.tell(f"The {member.name} {how(code)}; it starts again in {member.wait_seconds:g} s.")
        member.wait_seconds = min(LONGEST_WAIT_SECONDS, member.wait_seconds * 2)

    def stop(self, seconds: float, hurry: Callable[[], bool]) -> None:
        """Ask all to end, wait up to ``seconds`` or until ``hurry()``, kill the rest; nobody is left."""
        for member in self.members:
            member.ask(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while any(self._lives(member) for member in self.members):
            if time.monotonic() > deadline or hurry():
                for member in self.members:
                    member.kill()
                deadline = time.monotonic() + LONGEST_WAIT_SECONDS
            time.sleep(0.05)

    @staticmethod
    def _lives(member: Sibling) -> bool:
        member.ended()
        return member.process is not None


def how(code: int) -> str:
    """Return how a process ended, in words; a negative ``code`` is a signal."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
