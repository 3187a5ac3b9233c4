"""The page of a night: ``whole.Night`` puts answers of ``wakeboard.nights`` and of other pages together."""
