"""Processes, the memory and output they share, exit statuses, and OS users."""
