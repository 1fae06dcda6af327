"""Nodes join, leave, stop, reload and are administered; links and listeners with TLS."""
