"""The command ``wakeboard``, which is also ``python -m wakeboard``."""

from __future__ import annotations

import sys

from wakeboard.config import stop_signals

SERVING = {"up", "worker", "tick", "web"}


def main() -> None:
    """Run this process's command line and exit. What serves notes a stop from the first moment."""
    serves = _verb(sys.argv[1:]) in SERVING
    if serves:
        stop_signals.record_early_stops()
    # All that commands need is loaded from here on.
    from wakeboard.cli import main as run

    try:
        run()
    finally:
        if serves:
            stop_signals.ignore()


def _verb(words: list[str]) -> str | None:
    """Return the command that ``words`` name: the first that is no option, none of which takes a value."""
    return next((word for word in words if not word.startswith("-")), None)


if __name__ == "__main__":
    main()
