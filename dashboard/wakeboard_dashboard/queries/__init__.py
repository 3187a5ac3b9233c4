"""One function per question; each reads on the request's transaction and returns plain rows."""
