"""Commands that ask a node about its state or change it."""
