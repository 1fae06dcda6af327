"""Nodes are killed, stopped, cut off, wiped or short of something: what was confirmed is there, once."""
