"""docs/handlers.md: what it shows is code that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "handlers.md"
# From here on the examples need a shop: test_effects_page runs them.
WORKED = "## Worked examples"
AFTERWARDS = """
from wakeboard.handlers.registry import JOB_TYPES
assert greet(Context(payload={"name": "Ada"})) == {"said": "Hello Ada"}
class CardDeclined(Exception):
    pass
def bank_charge(order, idempotency_key):
    raise CardDeclined("no funds")
try:
    charge_order(Context(payload={"order": 7}, key="charge:7"))
except Permanent as refused:
    assert refused.error_code == "card_declined"
print(len(JOB_TYPES))
"""


def test_every_example_on_the_page_is_code_that_registers_and_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text().partition(WORKED)[0], re.DOTALL)
    program = "\n".join(blocks) + AFTERWARDS
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    registered = program.count("\n@job(")
    assert (answer.stderr, answer.stdout) == ("", f"{registered}\n")
