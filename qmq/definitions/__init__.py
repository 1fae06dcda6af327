"""Definitions: settings that the mesh replicates. Pure: no clock, no disk, no network.

definition   key, version and value of one definition
table        the definitions of a node, and how those of two nodes merge
tombstones   when the tombstone of a deleted definition may go
"""
