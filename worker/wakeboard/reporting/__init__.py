"""Read models: statistics, the activity report, why a run waits, filters, worker states, heartbeats."""
