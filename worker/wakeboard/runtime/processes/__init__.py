"""The processes of a worker that can be killed: the fork server and its children.

``children`` is the supervisor's side, ``child`` the handlers'. ``child_exit`` lists why a child ends. Nothing
here knows the database, but for ``child.UnbegunList``.
"""
