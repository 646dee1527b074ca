"""Plain values that every other part may use: they know nothing of stores or Django."""
