"""Topics: patterns, retained last values, and the sequence filter for messages of other nodes."""
