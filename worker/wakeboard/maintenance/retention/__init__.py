"""Retention: removes what ended long ago, in small batches, in whichever worker has time.

``policy`` says how long, ``zone_map`` remembers which ids hold nothing that has expired, ``runs`` and
``other_rows`` remove one batch, ``sweep`` is the duty that makes a pass. Nothing here waits for a lock.
"""
