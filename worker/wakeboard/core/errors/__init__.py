"""What failed: its words, its group, and when it is tried again."""
