"""Below every page: security, errors, parameters, files, the database of a request, request metrics."""
