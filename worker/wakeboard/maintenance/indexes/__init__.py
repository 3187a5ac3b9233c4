"""Finds indexes that a long transaction left bloated, and rebuilds them while workers run."""
