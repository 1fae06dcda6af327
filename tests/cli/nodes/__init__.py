"""Commands that start nodes, check their configuration, and read their data directories."""
