"""The page of a night: ``report.Night`` joins answers of ``reporting.activity_report`` and of other pages."""
