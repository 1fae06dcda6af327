"""Dispatch where not every consumer may have every message: selectors, groups, exclusive consumers."""
