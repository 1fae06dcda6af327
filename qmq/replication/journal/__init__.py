"""Copying journals between nodes: what is sent, what is accepted, and what is missing."""
