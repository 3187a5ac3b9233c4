"""What a worker does beside its runs, one duty a file: leases, presence, reaping, live output."""
