"""A message, what its sender and the operator ask for it, and what the broker must know to decide about it."""
