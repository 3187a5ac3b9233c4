"""Indexes that a long transaction left bloated: which they are, and their rebuilding beside the work."""
