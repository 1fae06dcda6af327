"""Members of the mesh: joining, leaving, takeover of queues, and whether a clock is believed."""
