"""Destinations in the configuration: their policies, and the keys of declared queues."""
