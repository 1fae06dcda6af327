"""Tests of the archive without Spark."""
