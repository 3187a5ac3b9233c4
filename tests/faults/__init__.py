"""The fault suite: what must stay true when workers, databases, networks and clocks fail.

A row is a test that injects one fault of the list and states what it measured. How to add one:

1.  Put it in the file of its group (``test_worker_faults.py``, ``test_database_faults.py``, …), decorated:
    ``@fault("F02", injected="kill -9 of handlers", expected="attempt failed, slot free at once")``.
2.  Ask for fixtures: ``house`` (a database of its own, workers with short leases, a truth file), ``scale``
    (``scale.times(10, 200)``: 10 in ``bin/test``, 200 in ``bin/faults``), ``chance`` (a ``random.Random`` of
    the row's printed seed: every choice comes from it), ``measured`` (call it once, numbers in words).
3.  Enqueue with ``house.enqueue`` or ``house.enqueue_many``, which keep what was acknowledged; tell
    ``house.acknowledge`` of runs made elsewhere. Handlers (``apps/``) tell the truth file what they do; those
    of another module are started with ``house.worker(APP="tests.support.faults.apps.…")``.
4.  End with ``house.settle(seconds)`` (every run ends) and ``house.check()``: it stops everything and asserts
    the invariants; a row that forgets it fails. Limits and fires are told to it:
    ``house.check(limits={"one_at_a_time": 1}, fires={definition_id: slots})``.
5.  Wait for conditions with ``wait_until``, never for a time. Assert the row's own numbers before ``check``.

``bin/faults`` runs every row at full scale; ``bin/faults --seed 7 F02 F06`` repeats two of them as they were.
"""
