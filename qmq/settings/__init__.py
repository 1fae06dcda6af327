"""What is set for the whole mesh at run time: definitions, exchanges and bindings, limits."""
