"""What runs, moves and job types are. No I/O, and nothing of the other rooms."""
