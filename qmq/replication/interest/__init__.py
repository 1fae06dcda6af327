"""The interest of a node: which topics its subscribers want, as versioned state."""
