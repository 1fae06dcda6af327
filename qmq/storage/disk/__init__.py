"""Disks: real files, a disk in memory that fails on demand, and how SQLite files are opened."""
