"""Frames of clients that make mistakes, for the codecs of AMQP and beanstalkd.

Each connection is fed twice: frame by frame, and in other cuts. Both must give the same, whatever is wrong must be a
declared error, and what is held must stay within its bound. A unit test feeds some frames, and
`python -m tests.wire.fuzz` as many as are asked for.
"""
