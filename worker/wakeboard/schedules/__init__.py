"""Schedules: crontab files, declarations in code, the planning of fires, and firing."""
