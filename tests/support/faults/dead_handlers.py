"""Telling the truth file of handlers that died without a word, so that nobody counts them as running.

Rows with limits need it where workers are killed: a run that was taken back may wait for its next attempt
while others have its place.
"""

from __future__ import annotations

from tests.support.faults.deployment import House
from tests.support.faults.truth_file import now
from tests.support.workers.worker_processes import is_alive


def bury(house: House) -> bool:
    """Tell the truth file of handlers that died without a word; whether those of dead workers all have."""
    lines = house.truth()
    ended = {(line.run_id, line.attempt) for line in lines if line.word == "end"}
    silent = [one for one in lines if one.word == "start" and (one.run_id, one.attempt) not in ended]
    for one in silent:
        if not is_alive(one.pid):
            told = f"end {one.run_id} {one.attempt} {one.pid} {now():.6f} {one.job_type} {one.payload_hash}\n"
            with house.truth_file.open("a") as file:
                file.write(told)
    living = [each for each in house.processes if each.process.poll() is None]
    children = {member.pid for each in living for member in each.family()}
    return all(one.pid in children for one in silent if is_alive(one.pid))
