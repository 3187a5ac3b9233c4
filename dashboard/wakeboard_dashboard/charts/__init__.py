"""Charts: SVG, or the places of its bars, points and lines for a template. Pure."""
