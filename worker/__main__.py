"""The command ``wakeboard``, which is also ``python -m worker``."""

from __future__ import annotations

import sys

from worker import stop_signals

SERVING = {"up", "worker", "tick", "web"}


def main() -> None:
    """Run this process's command line and exit. What serves notes a stop from the first moment."""
    serves = bool(SERVING & set(sys.argv[1:]))
    if serves:
        stop_signals.take_note()
    # All that commands need is loaded from here on.
    from worker.cli import main as run

    try:
        run()
    finally:
        if serves:
            stop_signals.end()


if __name__ == "__main__":
    main()
