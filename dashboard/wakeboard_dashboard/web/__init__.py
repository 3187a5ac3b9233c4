"""What every page stands on: security, errors, parameters, static files, the database session, request metrics."""
