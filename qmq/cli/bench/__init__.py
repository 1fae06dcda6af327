"""`qmq bench`."""
