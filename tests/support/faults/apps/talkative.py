"""The handlers of the fault rows, in a module that prints more than may wait when it is imported."""

from __future__ import annotations

import sys

from tests.support.faults.apps.handlers import *  # noqa: F403
from tests.support.faults.printed_lines import LINE, LINES

for number in range(LINES):
    sys.stderr.write(LINE.format(number))
