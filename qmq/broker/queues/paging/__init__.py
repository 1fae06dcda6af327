"""Which messages of a queue are in memory and which only in the queue store."""
