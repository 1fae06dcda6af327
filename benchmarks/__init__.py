"""Measurements of a node: `python -m benchmarks.run` writes docs/benchmarks.md."""
