"""From cron text to runs: which fires are due, and what becomes of them."""
