"""Several real processes: nodes, a Spark cluster, Spark Connect, and drivers that are killed."""
