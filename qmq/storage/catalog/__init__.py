"""The catalog: durable subscriptions, facts about the mesh, and collected incarnations."""
