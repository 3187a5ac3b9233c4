"""One move on many runs: what a person confirmed, moved in small steps by the workers, watched, and stopped.

``rules`` says what happens to a run and why not, ``matching`` finds the runs of a filter (it alone imports
SQLAlchemy), ``start`` and ``control`` are what people do, ``advance`` is what a worker does.
"""
