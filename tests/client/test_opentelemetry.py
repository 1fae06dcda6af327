"""Spans and metrics of the client in each style of program."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

import qmq.client
import qmq.client.aio
import qmq.client.blocking
from qmq.config import DestinationPolicy, DestinationSettings
from qmq.errors import Refused
from tests.client.styles import Nodes, nodes

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider  # noqa: E402
from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.trace import SpanKind, StatusCode  # noqa: E402

from qmq.client.opentelemetry import OpenTelemetry  # noqa: E402

ONE_MESSAGE = DestinationSettings(policies=(DestinationPolicy(pattern="/queue/small", max_messages=1),))


class Observed:
    """What a client has reported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("tests")
        meters = MeterProvider(metric_readers=[self._reader])
        self.tracing = OpenTelemetry(tracer_provider=provider, meter_provider=meters)

    def span(self, name: str) -> Any:
        (found,) = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return found

    def counts(self, metric: str) -> dict[tuple[Any, ...], int]:
        """By operation, destination and error; of a histogram how often."""
        data: Any = self._reader.get_metrics_data()
        points = [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for one in scope.metrics
            if one.name == metric
            for point in one.data.data_points
        ]
        names = ("messaging.operation.name", "messaging.destination.name", "error.type")
        return {
            tuple(point.attributes.get(name) for name in names): getattr(point, "value", None) or point.count
            for point in points
        }


@pytest.fixture
def mesh() -> Iterator[Nodes]:
    with nodes(destinations=ONE_MESSAGE) as mesh:
        yield mesh


def use_blocking(mesh: Nodes, observed: Observed) -> None:
    with qmq.client.blocking.connect(mesh.addresses, tracing=observed.tracing) as client:
        with observed.tracer.start_as_current_span("order"):
            client.send("/queue/small", b"12345", {"colour": "green"})
            with pytest.raises(Refused):
                client.send("/queue/small", b"")
        with client.subscribe("/queue/small") as messages:
            with pytest.raises(ZeroDivisionError), next(messages) as message:
                with observed.tracer.start_as_current_span("work"):
                    raise ZeroDivisionError
        assert message.headers["colour"] == "green"


async def use_async(connect: Callable[..., Any], mesh: Nodes, observed: Observed) -> None:
    async with connect(mesh.addresses, tracing=observed.tracing) as client:
        with observed.tracer.start_as_current_span("order"):
            await client.send("/queue/small", b"12345", {"colour": "green"})
            with pytest.raises(Refused):
                await client.send("/queue/small", b"")
        async with client.subscribe("/queue/small") as messages:
            with pytest.raises(ZeroDivisionError):
                async with await anext(messages) as message:
                    with observed.tracer.start_as_current_span("work"):
                        raise ZeroDivisionError
        assert message.headers["colour"] == "green"


USES: dict[str, Callable[[Nodes, Observed], None]] = {
    "trio": lambda mesh, observed: trio.run(use_async, qmq.client.connect, mesh, observed),
    "asyncio": lambda mesh, observed: asyncio.run(use_async(qmq.client.aio.connect, mesh, observed)),
    "blocking": use_blocking,
}


@pytest.mark.parametrize("style", USES)
def test_the_trace_of_a_sender_goes_on_where_its_message_is_processed(mesh: Nodes, style: str) -> None:
    observed = Observed()

    USES[style](mesh, observed)

    order, work = observed.span("order"), observed.span("work")
    process = observed.span("process /queue/small")
    send = next(
        span for span in observed._exporter.get_finished_spans() if span.context.span_id == process.parent.span_id
    )
    assert send.name == "send /queue/small" and send.parent.span_id == order.context.span_id
    assert work.parent.span_id == process.context.span_id
    assert len({span.context.trace_id for span in (order, send, process, work)}) == 1
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    host, port = mesh.addresses[0].split(":")
    assert send.attributes == {
        "messaging.system": "qmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "/queue/small",
        "messaging.message.body.size": 5,
        "server.address": host,
        "server.port": int(port),
    }
    assert process.attributes["messaging.message.id"]
    assert (process.status.status_code, process.attributes["error.type"]) == (StatusCode.ERROR, "ZeroDivisionError")
    failed = next(span for span in observed._exporter.get_finished_spans() if "queue-full" in str(span.attributes))
    assert failed.status.status_code is StatusCode.ERROR
    sent = {("send", "/queue/small", None): 1, ("send", "/queue/small", "queue-full"): 1}
    assert observed.counts("messaging.client.sent.messages") == sent
    assert observed.counts("messaging.client.operation.duration") == sent
    processed = {("process", "/queue/small", "ZeroDivisionError"): 1}
    assert observed.counts("messaging.client.consumed.messages") == processed
    assert observed.counts("messaging.process.duration") == processed


def test_requests_and_replies_and_transactions_are_in_the_trace(mesh: Nodes) -> None:
    observed = Observed()
    with (
        qmq.client.blocking.connect(mesh.addresses, tracing=observed.tracing) as client,
        qmq.client.blocking.connect(mesh.addresses, tracing=observed.tracing) as worker,
        worker.subscribe("/queue/work") as requests,
    ):

        def work() -> None:
            with next(requests) as request, worker.transaction() as together:
                together.send("/queue/log", b"worked")
                assert request.reply(b"done")

        thread = threading.Thread(target=work)
        thread.start()
        answer = client.request("/queue/work", b"", {"correlation-id": "mine"})
        thread.join()
        with client.subscribe("/queue/log") as log, observed.tracer.start_as_current_span("batch") as batch:
            with next(log):
                pass

    assert answer.headers["correlation-id"] == "mine"
    request, process, reply, create, logged = map(
        observed.span,
        ("send /queue/work", "process /queue/work", "send (temporary)", "create /queue/log", "process /queue/log"),
    )
    assert request.attributes["messaging.message.conversation_id"] == "mine"
    assert process.parent.span_id == request.context.span_id
    assert reply.parent.span_id == create.parent.span_id == process.context.span_id
    assert reply.attributes["messaging.destination.temporary"] is True
    assert observed.counts("messaging.client.sent.messages")[("send", None, None)] == 1
    # In the span of a batch it has a link to where its message comes from.
    assert logged.parent.span_id == batch.get_span_context().span_id
    assert [link.context.span_id for link in logged.links] == [create.context.span_id]
