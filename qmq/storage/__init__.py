"""Bytes on disk. Knows nothing of brokers or STOMP, and never awaits: the server calls it from worker threads."""
