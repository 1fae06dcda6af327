"""One node: its parts, its start, its stop, its reload."""
