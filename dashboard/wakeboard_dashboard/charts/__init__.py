"""What is drawn: where the bars, points and lines of a chart stand, as numbers for its template. Pure."""
