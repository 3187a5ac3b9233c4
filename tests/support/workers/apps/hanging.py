"""The ``wakeboard`` command with a loop that hangs for ever at SIGUSR1, while its threads go on."""

from __future__ import annotations

import signal
import time
from types import FrameType

from wakeboard.cli import main


def hang(_number: int, _frame: FrameType | None) -> None:
    """Never come back: signal handlers run on the thread of the loop."""
    while True:
        time.sleep(0.01)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, hang)
    main()
