"""Carrying the journal into the stores, and what a part of it comes to."""
