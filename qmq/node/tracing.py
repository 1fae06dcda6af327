"""Where the spans of a node go: to the SDK of OpenTelemetry, and by its OTLP exporter over HTTP to a collector.

The environment variables `OTEL_*` configure all of it; `[tracing]` only turns it on. The SDK exports in a thread of
its own, from a queue with a bound: if the collector is slow or away, spans are dropped, and the node does not wait.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from qmq import __version__
from qmq.config.node import TracingSettings
from qmq.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

FAREWELL_SECONDS: Final = 5.0
"""For the last spans, when the node has stopped."""


@contextmanager
def tracing(settings: TracingSettings) -> Iterator["Tracer | None"]:
    """The tracer of a node, None if it makes no spans. At the end the last spans are exported, or dropped.

    Raises ConfigError for a variable that the SDK refuses.
    """
    if not settings.enabled:
        yield None
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # It would be a line for each message whose client writes a tracestate wrongly.
    logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)
    try:
        resource = Resource.create({"service.name": "qmq", **OTELResourceDetector().detect().attributes})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise ConfigError([f"the environment variables OTEL_…: {error}"]) from error
    try:
        yield provider.get_tracer("qmq.node", __version__)
    finally:
        # The SDK itself would wait for half a minute.
        last = threading.Thread(target=provider.shutdown, name="qmq-last-spans", daemon=True)
        last.start()
        last.join(FAREWELL_SECONDS)
