"""The processes of a worker that can be killed: the fork server and its children.

``children`` is the supervisor's side, ``child`` the handlers'. ARCHITECTURE.md lists why a child is killed.
Nothing here knows the database, but for ``child.UnbegunList``.
"""
