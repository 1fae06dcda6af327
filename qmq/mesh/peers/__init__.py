"""Requests to peers and their responses."""
