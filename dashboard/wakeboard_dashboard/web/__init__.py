"""What every page stands on: security, errors, parameters, files, the database session, request metrics."""
