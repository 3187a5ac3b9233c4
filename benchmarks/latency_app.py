"""The handler of the latency benchmark: sends the time of its start."""

import os
import socket
from time import monotonic_ns

from wakeboard import Context, job

_sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


@job("report_start")
def report_start(ctx: Context) -> None:
    """Send the time to the benchmark."""
    _sender.sendto(b"%d" % monotonic_ns(), os.environ["START_SOCKET"])
