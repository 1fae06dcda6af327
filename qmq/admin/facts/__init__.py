"""What a node knows of itself: its queues, its counters."""
