"""One room for each protocol: its codec, its gateway, its dialogue."""
