"""Handlers of as many types as the environment says, t0000 and so on, and of one policy: nothing at all."""

import json
import os

from wakeboard import Context, job


def nothing(ctx: Context) -> None:
    """Do nothing."""


for number in range(int(os.environ["BENCHMARK_TYPES"])):
    job(f"t{number:04}", **json.loads(os.environ["BENCHMARK_POLICY"]))(nothing)
