"""Failures where they are many, from memory: ``remembered`` answers by group, ``runs`` by run."""
