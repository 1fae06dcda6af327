"""Tests of the simulation itself: its network, disks, pauses, plans, checks and traces."""
