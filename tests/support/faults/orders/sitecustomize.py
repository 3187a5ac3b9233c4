"""Loaded by every Python process of a row about threads; it acts in those that get the signal ORDER.

The file ``order`` in the folder THREAD_ORDERS says what to do: raise ``SystemExit`` in the threads named in
``end``, or let the functions named in ``break`` raise from then on. Afterwards the file named by the process
id has the names of the threads that live.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

ORDER = signal.SIGRTMIN + 5
FOLDER = os.environ.get("THREAD_ORDERS")


def obey(_number: int, _frame: object) -> None:
    """Carry out the order and write down the names of the threads."""
    folder = Path(str(FOLDER))
    order = json.loads((folder / "order").read_text())
    for thread in threading.enumerate():
        if thread.name in order.get("end", ()):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
            )
    for name in order.get("break", ()):
        break_down(name)
    place = folder / str(os.getpid())
    unready = place.with_suffix(".unready")
    unready.write_text(json.dumps([thread.name for thread in threading.enumerate()]))
    unready.rename(place)


def break_down(name: str) -> None:
    """Let the method ``module:Class.method`` raise what nobody expects."""
    module, _, path = name.partition(":")
    owner, _, method = path.partition(".")

    def broken(*_given: Any, **_named: Any) -> Any:
        raise TypeError(f"{path} is broken on purpose")

    setattr(getattr(importlib.import_module(module), owner), method, broken)


if FOLDER:
    signal.signal(ORDER, obey)
