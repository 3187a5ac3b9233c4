"""What is said: sentences about states, nights, schedules and changes, of values that others read. Pure."""
