"""AMQP's words to the broker's: methods become frames of a STOMP client and control requests, and effects methods.

Pure. What a publish, a consume or an ack asks for is what a STOMP client would send for it, so the rules are those of
`qmq.gateways.stomp` and no others.
"""
