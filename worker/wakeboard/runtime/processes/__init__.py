"""Processes that can be killed: the template, its children, what they share and how they are cleaned up.

``children`` is the supervisor's side, ``child`` the handler's; nothing here knows the database.
"""
