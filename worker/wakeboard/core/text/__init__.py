"""Texts and JSON from outside: cleaned, bounded, redacted, compared."""
