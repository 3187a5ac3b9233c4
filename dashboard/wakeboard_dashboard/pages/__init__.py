"""A page and its fragments, its verbs, and how its templates are rendered."""
