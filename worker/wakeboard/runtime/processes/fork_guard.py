"""What a process that a handler forks must not have of its parent: its signals, its wire, its way out.

`os.fork` and `multiprocessing` come here, and so does a `preexec_fn`. Nothing here costs a run that forks
nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn

from wakeboard.config.stop_signals import STOPS, no_action
from wakeboard.core.process.exits import is_exit, status_of


class Offspring:
    """Watches the forks of a slot's child. `is_here`: this process is one of them."""

    def __init__(self, own_term: Any, work: socket.socket) -> None:
        """`own_term`: the child's handler of SIGTERM; `work`: its wire to the supervisor."""
        self.is_here = False
        self._defaults: dict[signal.Signals, tuple[Any, Any]] = {
            signal.SIGHUP: (no_action, signal.SIG_DFL),
            signal.SIGINT: (no_action, signal.default_int_handler),
            signal.SIGTERM: (own_term, signal.SIG_DFL),
        }
        self._work = work
        self._masks: dict[int, set[int]] = {}
        os.register_at_fork(
            before=self._hold_back, after_in_parent=self._let_in, after_in_child=self._be_of_its_own
        )

    def _hold_back(self) -> None:
        """A stop for the new process that comes before it has its own signals must wait, or nobody hears."""
        mask: Any = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        self._masks[threading.get_ident()] = mask

    def _let_in(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.pop(threading.get_ident(), ()))

    def _be_of_its_own(self) -> None:
        """Be as any process of Python's; handlers that the run has set go along, as they do elsewhere."""
        self.is_here = True
        for number, (ours, default) in self._defaults.items():
            if signal.getsignal(number) == ours:
                signal.signal(number, default)
        self._work.close()
        self._let_in()


def leave(error: BaseException | None) -> NoReturn:
    """End a forked process that came to the end of its handler by `error`: with the status Python would give.

    The answer belongs to the process that forked it.
    """
    status = 0
    if error is not None and is_exit(error):
        status = status_of(error)
        if isinstance(error, SystemExit) and not isinstance(error.code, int | None):
            with contextlib.suppress(BaseException):
                sys.stderr.write(f"{error.code}\n")
    elif error is not None:
        status = 1
        with contextlib.suppress(BaseException):
            traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(status)
