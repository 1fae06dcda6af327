"""The commit log: a chain of segments, appended, recovered and read from any position."""
