"""The module with the handlers: can it be imported, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from wakeboard.cli.commands.doctor.result import CheckResult
from wakeboard.cli.commands.up import describe_exit
from wakeboard.config.settings import Settings
from wakeboard.config.working_directory import current_folder

APP_SECONDS = 30
# The answer goes to a file of its own: neither what the module prints nor how the process ends is one.
PROGRAM = """
import json, os, sys
from wakeboard.handlers import registry
file = int(sys.argv[2])
os.set_inheritable(file, False)
try:
    added = registry.load_app(sys.argv[1])
    answer = {"added": added, "complaint": "" if added else registry.without_handlers(sys.argv[1])}
except BaseException as error:
    answer = {"failure": f"{type(error).__name__}: {error}"}
os.write(file, json.dumps(answer).encode())
"""


def app(settings: Settings) -> Iterator[CheckResult]:
    """Import the app in a process of its own: importing a user's module may do anything."""
    if settings.app is None:
        yield CheckResult(
            "app", "warning", "No module with handlers is set.", "Set WAKEBOARD_APP or use --app MODULE."
        )
        return
    here = f"start in its folder (now {current_folder() or 'one that is gone'})."
    answer = _import(settings.app)
    if answer is None:
        wrong = f"Importing {settings.app} takes over {APP_SECONDS} s."
        yield CheckResult("app", "fail", wrong, "Move slow work out of the import.")
    elif "failure" in answer:
        reason = " ".join(answer["failure"].split()).rstrip(" .:")
        wrong = f"{settings.app} cannot be imported: {reason}."
        yield CheckResult("app", "fail", wrong, f"Fix the module, or {here}")
    elif answer["complaint"]:
        yield CheckResult("app", "fail", answer["complaint"], f"If it is a file of yours, {here}")
    else:
        kinds = "1 job type" if answer["added"] == 1 else f"{answer['added']} job types"
        yield CheckResult("app", "ok", f"{settings.app} is importable: {kinds} of its own.")


def _import(module: str) -> dict[str, Any] | None:
    """Return the answer of a process that imports ``module``; None when it takes longer than APP_SECONDS."""
    code: int | None = None
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            code = subprocess.run(
                [sys.executable, "-P", "-c", PROGRAM, module, str(output.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                pass_fds=[output.fileno()], timeout=APP_SECONDS, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            pass  # A thread of the module may keep alive a process that has answered.
        output.seek(0)
        if text := output.read():
            answer: dict[str, Any] = json.loads(text)
            return answer
        if code is None:
            return None
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else " without a word"
        return {"failure": f"the process that tried it {describe_exit(code)}{last}"}
