"""Telling people, without anybody else's monitoring: what is asked, when it is told, how it is sent.

``kinds`` says what may be watched, ``questions`` asks the tables, ``judge`` decides (pure), ``watch`` writes
state and messages in one transaction, ``messages`` finds the words, ``channels`` sends, ``delivery`` keeps a
message from being sent by two. ``heartbeat`` is the dead man's switch. Never imports SQLAlchemy.
"""
