"""Settings, logging, and what a process is given by those who start it."""
