"""The jobs: archive, audit, comparison, history, dead letters and replay, statistics."""
