"""The built-in handlers, for people with no Python to write."""
