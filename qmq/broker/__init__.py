"""The rules of one node: which client gets which message. Pure: no await, no clock, no randomness, no I/O."""
