"""Members of the mesh: joining, leaving, takeover of queues, and the check of the clock."""
