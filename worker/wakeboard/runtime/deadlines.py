"""How long stopping and killing may take, in seconds, each named for its act.

The settings are in ``config.settings``: WAKEBOARD_KILL_SECONDS, WAKEBOARD_SHUTDOWN_SECONDS,
WAKEBOARD_CHILD_EXIT_SECONDS. ARCHITECTURE.md has the table of reasons for which a child is killed.
"""

from __future__ import annotations

# ---- the end of the worker -----------------------------------------------------------------------------

# What the last writes, and the exit of the process, take off the shutdown time.
LAST_WRITES_SECONDS, WORKER_EXIT_SECONDS = 1.0, 0.4
# How much longer than WAKEBOARD_CHILD_EXIT_SECONDS a child that ends in order is waited for, so that one that
# overran it can be logged.
CHILD_OVERRUN_SECONDS = 0.25
# How long the fork server may take to end with its worker, before it is killed.
SERVER_END_SECONDS = 1.5

# ---- runs ----------------------------------------------------------------------------------------------

# How often a run with a limit of memory is weighed.
WEIGH_SECONDS = 0.5
# How long a child may take to stop, before the fork server looks which run it executes: one in the middle of
# disk I/O stops only afterwards, and the other children must not wait for it.
CHILD_STOP_SECONDS = 0.05
# How long the fork server may take to kill a child that executes a certain run, before the worker does.
RUN_KILL_SECONDS = 1.0
# How long the claims wait for killed children whose runs the database has forgotten.
FORGOTTEN_KILL_SECONDS = 5.0

# ---- processes that others left ------------------------------------------------------------------------

# How long a child may take to kill what its run left, before the child itself is replaced.
RUN_ORPHANS_SECONDS = 2.0
# How long the fork server may take to kill what a dead child left, or all below it at its own end.
CHILD_ORPHANS_SECONDS = 1.0
# How long the worker may take to kill what a dead fork server left.
SERVER_ORPHANS_SECONDS = 0.5

# ---- the fork server -----------------------------------------------------------------------------------

# How long a fork server that owes a receipt may be silent, before it is killed; how long, when a signal has
# suspended it.
SERVER_SILENT_SECONDS, SERVER_SUSPENDED_SECONDS = 3.0, 1.0
# How long one whose socket is closed may take to end, before it is killed, and how long a killed one.
SERVER_EXIT_SECONDS, SERVER_KILL_SECONDS = 0.05, 1.0
