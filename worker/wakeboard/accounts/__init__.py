"""Users, passwords, sessions, API tokens and login links."""
