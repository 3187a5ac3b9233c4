"""What is known of processes and of the users who run them."""
