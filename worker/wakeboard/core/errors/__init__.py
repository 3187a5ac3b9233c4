"""What failed: the words of an exception, and the group of failures with one cause."""
