"""The handlers of ``pulses``, in a module whose import takes the seconds that the file SLOW_IMPORT says."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.support.faults.apps.pulses import note, pulse

__all__ = ["note", "pulse"]

_place = Path(os.environ["SLOW_IMPORT"])
if _place.exists():
    _seconds = float(_place.read_text())
    _place.unlink()
    time.sleep(_seconds)
