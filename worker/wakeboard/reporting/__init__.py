"""What was, what is and why: statistics, last night, why a run waits, filters, worker states."""
