"""Alerts without anybody else's monitoring: rules, their evaluation, messages and channels.

``core.rule_types`` says what may be watched, ``checks`` reads the tables, ``rule_state`` decides when people
get a message (pure), ``evaluation`` writes states and messages in one transaction, ``messages`` writes the
text, ``channels`` sends, ``delivery`` keeps two processes from sending one message. ``heartbeat`` is the
dead man's switch. Never imports SQLAlchemy.
"""
