"""Failures by group where they are many: ``remembered`` answers what ``errors`` does, from memory."""
