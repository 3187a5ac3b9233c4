"""Backups of the embedded database: a dump while workers run, and a restore.

``dump`` writes the file, checks it and reads it into an empty database. ``fence`` cuts a restored database
off from the workers that used it before. The command line knows which server, and who asks.
"""
