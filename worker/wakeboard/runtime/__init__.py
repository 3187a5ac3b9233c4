"""The worker process: supervisor, its loop, its children and its duties."""
