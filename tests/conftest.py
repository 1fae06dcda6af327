"""For all tests: signals are what they are in a terminal."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script: what tests interrupt, processes of theirs too, would not hear of it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
