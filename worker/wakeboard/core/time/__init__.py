"""Durations, zones, cron and what a clock may be wrong by."""
