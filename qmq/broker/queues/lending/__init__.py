"""Queue messages lent to peers and borrowed from them."""
