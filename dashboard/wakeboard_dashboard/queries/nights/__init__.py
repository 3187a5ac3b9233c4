"""The page of a night: ``whole.Night`` puts answers of ``wakeboard.reporting.nights`` and of other pages together."""
