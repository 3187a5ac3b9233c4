"""Why a run waits: one question to the database, and its answer in words, for the page and the terminal.

``question`` asks, ``reasons`` says. Neither knows a page or a terminal; neither writes.
"""
