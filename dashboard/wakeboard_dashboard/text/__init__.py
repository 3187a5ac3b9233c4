"""Sentences and formats, made of values that queries read. Pure."""
