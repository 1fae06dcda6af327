"""Queue messages lent to peers, borrowed from them, and handed off between servers."""
