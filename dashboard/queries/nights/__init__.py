"""The page of a night: ``whole.Night`` puts the answers of ``worker.nights`` and of other pages together."""
