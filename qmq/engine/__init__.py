"""What turns decisions into durable effects: tasks, commits, checkpoints, timers."""
