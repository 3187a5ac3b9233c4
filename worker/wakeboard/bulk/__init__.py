"""Operations: one verb on many runs, previewed, confirmed, and made in small steps by the workers.

``rules`` says which runs are moved and why others are skipped, ``matching`` finds the runs of a filter (it
alone imports SQLAlchemy), ``start`` and ``control`` are the moves of people, ``advance`` is that of a worker.
"""
