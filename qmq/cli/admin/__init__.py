"""The commands that administer a mesh: each asks one node for a verb (`qmq.admin.verbs`)."""
