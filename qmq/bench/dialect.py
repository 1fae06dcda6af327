"""The same load for different STOMP brokers: names of destinations, and headers that STOMP does not define.

STOMP 1.2 says nothing of durability, of credit, of what a queue or a topic is called, or of what goes into the `host`
header. A Dialect holds just that for one kind of broker; everything else of a workload is the same frames to all, so
that figures of two brokers can stand beside each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Names and headers of one kind of broker."""

    topics: str = "/topic/"
    queues: str = "/queue/"
    fanouts: str = "/fanout/"
    """Prefixes of destination names."""
    durable: Headers = (("persistent", "true"),)
    """Headers of a SEND with a durable message."""
    memory: Headers = (("persistent", "false"),)
    """Headers of a SEND with a memory-only message."""
    prefetch: str = "prefetch-count"
    """The header of SUBSCRIBE with the number of messages that may be unacknowledged."""
    host: str | None = None
    """The `host` header of CONNECT; None: the host of the address."""
    connect: Headers = ()
    send: Headers = ()
    subscribe: Headers = ()
    """More headers for each CONNECT, SEND and SUBSCRIBE."""

    def prefix(self, kind: str) -> str:
        """The prefix of a kind of destination: topic, queue or fanout."""
        return {"topic": self.topics, "queue": self.queues, "fanout": self.fanouts}[kind]

    def kind_of(self, destination: str) -> str:
        """The kind in the name of a destination; topic if there is none."""
        for kind in ("queue", "fanout"):
            if destination.startswith(self.prefix(kind)):
                return kind
        return "topic"


DIALECTS: Mapping[str, Dialect] = {
    # Durable is the default of a node, and each header costs time to read.
    "qmq": Dialect(durable=()),
    # Transient is the default of RabbitMQ. Its host is a virtual host.
    "rabbitmq": Dialect(host="/", memory=()),
    # The same of ActiveMQ, whose credit has a name of its own.
    "activemq": Dialect(memory=(), prefetch="activemq.prefetchSize"),
    "generic": Dialect(),
}
"""Kind of broker → how to speak to it."""
