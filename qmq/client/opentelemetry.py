"""Traces and metrics of OpenTelemetry for a client, by its conventions for messaging. Needs the extra `opentelemetry`.

`connect(..., tracing=OpenTelemetry())`. A message carries the context of the span in which it was sent, as the header
`traceparent`, so that the span of the block that processes it belongs to the same trace, on whatever node.

Surprising: within another span, such as that of a batch, the span of the block is a child of that one, and has a link
to the context of its message: a span has one parent.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, SpanKind, TracerProvider

from qmq import __version__
from qmq.address import Address
from qmq.client.core.encode import Headers
from qmq.client.core.feed import Delivered
from qmq.errors import Refused

Attributes = dict[str, str | int | bool]

TEMPORARY = ("/temp-queue/", "/reply-queue/")
"""Destinations whose names are different each time: a name of a span has none of them, nor has a metric."""


class OpenTelemetry:
    """Without providers, the global ones."""

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer("qmq.client", __version__, tracer_provider)
        meter = metrics.get_meter("qmq.client", __version__, meter_provider)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages that were sent.")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages whose block has ended."
        )
        self._sending = meter.create_histogram(
            "messaging.client.operation.duration", "s", "From a call until the node has confirmed it."
        )
        self._processing = meter.create_histogram("messaging.process.duration", "s", "Of the block of a message.")

    @contextmanager
    def sending(
        self, operation: str, destination: str, body: bytes, headers: Headers, server: Address | None
    ) -> Iterator[Headers]:
        """See `Tracing`. The span of a request ends with its answer."""
        attributes = _attributes(destination, body, headers, server)
        with self._operation(operation, SpanKind.PRODUCER, attributes):
            carrier = dict(headers)
            propagate.inject(carrier)
            yield carrier

    def processing(self, delivery: Delivered, server: Address | None) -> AbstractContextManager[object]:
        """See `Tracing`."""
        headers = delivery.headers
        attributes = _attributes(headers.get("destination", ""), delivery.body, headers, server)
        attributes["messaging.message.id"] = headers.get("message-id", "")
        creation = propagate.extract(headers)
        if not trace.get_current_span().get_span_context().is_valid:
            return self._operation("process", SpanKind.CONSUMER, attributes, creation)
        link = Link(trace.get_current_span(creation).get_span_context())
        return self._operation("process", SpanKind.CONSUMER, attributes, None, [link])

    @contextmanager
    def _operation(
        self,
        operation: str,
        kind: SpanKind,
        attributes: Attributes,
        context: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Iterator[None]:
        """A span, and at its end the metrics, whose labels have few values."""
        is_temporary = "messaging.destination.temporary" in attributes
        where = "(temporary)" if is_temporary else str(attributes["messaging.destination.name"])
        labels: Attributes = {"messaging.system": "qmq", "messaging.operation.name": operation}
        if not is_temporary:
            labels["messaging.destination.name"] = where
        given = {**attributes, **labels, "messaging.operation.type": operation}
        began = time.monotonic()
        with self._tracer.start_as_current_span(
            f"{operation} {where}", context, kind, attributes=given, links=links
        ) as span:
            try:
                yield
            except BaseException as error:
                labels["error.type"] = error.code if isinstance(error, Refused) else type(error).__qualname__
                span.set_attribute("error.type", labels["error.type"])
                raise
            finally:
                seconds = time.monotonic() - began
                if operation == "process":
                    self._processing.record(seconds, labels)
                elif operation == "send":
                    self._sending.record(seconds, labels)
                (self._consumed if operation == "process" else self._sent).add(1, labels)


def _attributes(destination: str, body: bytes, headers: Headers, server: Address | None) -> Attributes:
    found: Attributes = {
        "messaging.destination.name": destination,
        "messaging.message.body.size": len(body),
    }
    if destination.startswith(TEMPORARY):
        found["messaging.destination.temporary"] = True
    if "correlation-id" in headers:
        found["messaging.message.conversation_id"] = headers["correlation-id"]
    if server is not None:
        found |= {"server.address": server.host, "server.port": server.port}
    return found
