"""Control requests, status, events and policies."""
