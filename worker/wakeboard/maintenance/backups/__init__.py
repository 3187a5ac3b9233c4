"""Backups of the embedded database: a dump while all goes on, and a restore that begins a new life.

``dump`` writes the file, checks it and reads it into an empty database; ``new_life`` makes sure that no
worker of the old life can write to the new one. Which server, and who asks, is the command line's.
"""
