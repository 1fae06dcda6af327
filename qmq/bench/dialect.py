"""How to say the same load to different STOMP brokers: names of destinations, and headers for what STOMP leaves open.

STOMP 1.2 says nothing of durability, of credit, of what a queue or a topic is called, or of what goes into the `host`
header. A Dialect holds just that for one kind of broker; everything else of a workload is the same frames to all, so
that figures of two brokers can stand beside each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What one kind of broker wants to hear."""

    topics: str = "/topic/"
    queues: str = "/queue/"
    fanouts: str = "/fanout/"
    """What the name of a destination begins with."""
    durable: Headers = (("persistent", "true"),)
    """Of a SEND whose message must survive the broker."""
    memory: Headers = (("persistent", "false"),)
    """Of a SEND whose message need not."""
    prefetch: str = "prefetch-count"
    """The header of SUBSCRIBE with the number of messages that may be unacknowledged."""
    host: str | None = None
    """The `host` header of CONNECT; None: where it was connected to."""
    connect: Headers = ()
    send: Headers = ()
    subscribe: Headers = ()
    """More headers for each CONNECT, SEND and SUBSCRIBE."""

    def prefix(self, kind: str) -> str:
        """Of a `kind` of destination: topic, queue or fanout."""
        return {"topic": self.topics, "queue": self.queues, "fanout": self.fanouts}[kind]

    def kind_of(self, destination: str) -> str:
        """The kind that a destination's name tells; topic when it tells none."""
        for kind in ("queue", "fanout"):
            if destination.startswith(self.prefix(kind)):
                return kind
        return "topic"


DIALECTS: Mapping[str, Dialect] = {
    # Durable is what a node does without being told, and one header less is one header less to read.
    "qmq": Dialect(durable=()),
    # Transient is what RabbitMQ does without being told. Its host is a virtual host.
    "rabbitmq": Dialect(host="/", memory=()),
    # The same of ActiveMQ, whose credit has a name of its own.
    "activemq": Dialect(memory=(), prefetch="activemq.prefetchSize"),
    "generic": Dialect(),
}
"""Kind of broker → how to speak to it."""
