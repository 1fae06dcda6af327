"""Fanout logs and their readers."""
