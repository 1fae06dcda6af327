"""What the console asks of a node besides the control requests: lists in any order, the last hour, and one overview."""
