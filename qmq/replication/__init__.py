"""Replicate records to every node, and send topic and queue messages to the nodes that want them."""
