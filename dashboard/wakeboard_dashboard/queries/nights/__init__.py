"""The page of a night: ``whole.Night`` puts answers of ``wakeboard.reporting.activity_report`` and of other pages together."""
