"""The worker process: its supervisor, the loop's parts, the duties and the children."""
