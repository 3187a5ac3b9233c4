"""How the dashboard is served: gunicorn, where it listens, how it starts."""
