"""Retention: what ended long ago goes, in small batches, whoever of the workers has time for it.

``keep`` says for how long, ``zones`` remembers where nothing can have expired yet, ``runs`` and ``leftovers``
remove one batch, ``sweep`` is the duty that makes a pass of them. Nothing here waits for anybody's lock.
"""
