"""Definitions of a running node: changes, levelling with peers, control requests, and the kinds that the node knows."""
