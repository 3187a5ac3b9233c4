"""What a worker does beside its runs, one duty a module: leases, polls, reaping, statistics, live output."""
