"""What operators ask and command: verbs, status, inspection, the console."""
