"""Spans of OpenTelemetry for messages that have a header `traceparent`: what a node adds to the trace of a client.

Each is a child of the span in which its message was sent, with the names and attributes of `qmq.client.opentelemetry`.
The sampler and the export are the SDK's (`qmq.node.tracing`). Imported only by a node with a tracer, which needs the
extra `opentelemetry`.

Surprising: a span is made when it is over, with its times, so that nothing is kept while a message waits. What fails
in the SDK ends the spans of this node, and nothing else.
"""

import logging
from collections.abc import Callable
from typing import Final

from opentelemetry.trace import NoOpTracer, SpanKind, Tracer, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.message import DeadLetter, Message
from qmq.broker.selectors.properties import parsed
from qmq.model.dots import Origin

Attributes = dict[str, str | int]

HEADER: Final = b"traceparent:"

log = logging.getLogger("qmq.node")


class BrokerSpans:
    """The spans of one node; `now_us` is its wall clock."""

    def __init__(self, tracer: Tracer, origin: Origin, now_us: Callable[[], int]) -> None:
        self._tracer = tracer
        self._origin = origin
        self._now_us = now_us
        self._propagator = TraceContextTextMapPropagator()

    def stored(self, group: list[Outcome]) -> None:
        """A span `store` for each own message of `group`, which is durable now: from its decision on."""
        for out in group:
            for record in out.records:
                message = record.dead_letter if isinstance(record, DeadLetter) else record
                if isinstance(message, Message) and HEADER in message.envelope.headers:
                    self._end("store", SpanKind.SERVER, message, {})

    def delivered(self, subscription: Subscription, deliveries: list[Delivery]) -> None:
        """A span `deliver` for each of these, which are in the outbox of their client now: since they were accepted."""
        client = f"{self._origin}-{subscription.session}"
        for message in [one.message for one in deliveries if HEADER in one.message.envelope.headers]:
            more: Attributes = {"messaging.client.id": client, "qmq.delivery_count": max(message.attempts, 0) + 1}
            self._end("deliver", SpanKind.INTERNAL, message, more)

    def _end(self, operation: str, kind: SpanKind, message: Message, more: Attributes) -> None:
        """A span of `message` since it was accepted; none for a header that names no span."""
        try:
            headers = parsed(message.envelope.headers)
            parent = self._propagator.extract(headers)
            if not get_current_span(parent).get_span_context().is_valid:
                return
            attributes: Attributes = {
                "messaging.system": "qmq",
                "messaging.operation.name": operation,
                "messaging.destination.name": message.envelope.destination,
                "messaging.message.id": message.message_id,
                "messaging.message.body.size": len(message.body),
                "qmq.node": self._origin.node,
                **more,
            }
            if "correlation-id" in headers:
                attributes["messaging.message.conversation_id"] = headers["correlation-id"]
            name, begin_us = f"{operation} {message.envelope.destination}", message.timestamp_us
            span = self._tracer.start_span(name, parent, kind, attributes=attributes, start_time=begin_us * 1000)
            span.end(max(self._now_us(), begin_us) * 1000)
        except Exception:
            self._tracer = NoOpTracer()
            log.exception("! a span could not be made: this node makes no more until it is started again")
