"""Who may act: users, passwords, sessions, tokens and login links."""
