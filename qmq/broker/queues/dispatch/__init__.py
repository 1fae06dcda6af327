"""Which queue delivers which message next: dispatch, expiry, the registry of queues, and isolated mode."""
