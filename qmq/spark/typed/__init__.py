"""Typed tables: the bodies of messages as columns, in a Delta table that is filled as an archive is."""
