"""HTTP's words to the broker's: requests become frames of a STOMP client, and its answers become responses.

Pure. A request is what a STOMP client would send for it, so the rules are those of `qmq.gateways.stomp` and no others.
"""
