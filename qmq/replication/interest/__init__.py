"""Which topics the subscribers of a node want, as versioned state."""
