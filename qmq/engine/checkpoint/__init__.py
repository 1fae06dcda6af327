"""Checkpoints, paging of queues, and retention of fanouts."""
