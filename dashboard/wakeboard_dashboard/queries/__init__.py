"""Statements of pages, one module a page. A function reads on the request's transaction and returns rows."""
