"""What ``apps.talkative`` prints, in order: more than may wait anywhere."""

LINES = 60_000
LINE = "{:06d} printed while the handlers were imported, and no line of it may be torn or out of its place\n"
