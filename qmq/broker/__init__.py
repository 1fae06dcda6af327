"""The rules of one node: who gets which message. Pure: no await, no clock, no randomness, no I/O."""
