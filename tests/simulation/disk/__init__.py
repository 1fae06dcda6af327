"""Faults at each call of the disk of one node alone."""
