"""Spans of whole nodes: what they add to the trace of a client, and what a broken exporter disturbs."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import (  # noqa: E402
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler  # noqa: E402
from opentelemetry.trace import SpanKind  # noqa: E402

from tests.node.mesh_rig import MeshRig  # noqa: E402
from tests.node.rig import Rig, eventually, nothing_more, send, subscribe  # noqa: E402

QUEUE = "/queue/jobs"
TRACE, PARENT = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
SAMPLED, NOT_SAMPLED = f"00-{TRACE:032x}-{PARENT:016x}-01", f"00-{TRACE:032x}-{PARENT:016x}-00"


class Spans:
    """What one node has reported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=ParentBased(ALWAYS_ON))
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("tests")

    def all(self) -> Sequence[Any]:
        return self._exporter.get_finished_spans()

    def names(self) -> list[str]:
        return [span.name for span in self.all()]


def assert_below_the_client(span: Any) -> None:
    assert (span.context.trace_id, span.parent.span_id) == (TRACE, PARENT)


async def test_a_message_through_a_queue_has_spans_below_that_of_its_sender(autojump_clock: Any) -> None:
    rig, spans = Rig(), Spans()
    rig.tracer = spans.tracer

    async with rig.run():
        client = await rig.dial()
        session = (await client.log_in()).head.headers["session"]
        await client.send(send(QUEUE, "hello", "r", traceparent=SAMPLED, correlation_id="mine"))
        await client.receipt()
        await client.send(subscribe(QUEUE, ack="client-individual"))
        first = await client.next("MESSAGE")
        await client.send(f"NACK\nid:{first.head.headers['ack']}\n\n")
        await client.next("MESSAGE")

    store, deliver, again = spans.all()
    for span in spans.all():
        assert_below_the_client(span)
    common = {
        "messaging.system": "qmq",
        "messaging.destination.name": QUEUE,
        "messaging.message.id": first.head.headers["message-id"],
        "messaging.message.body.size": 5,
        "messaging.message.conversation_id": "mine",
        "qmq.node": "a",
    }
    of_delivery = {**common, "messaging.operation.name": "deliver", "messaging.client.id": session}
    assert (store.name, store.kind) == (f"store {QUEUE}", SpanKind.SERVER)
    assert store.attributes == {**common, "messaging.operation.name": "store"}
    assert (deliver.name, deliver.kind) == (f"deliver {QUEUE}", SpanKind.INTERNAL)
    assert deliver.attributes == {**of_delivery, "qmq.delivery_count": 1}
    assert again.attributes == {**of_delivery, "qmq.delivery_count": 2}
    assert store.start_time == deliver.start_time == again.start_time
    assert store.start_time < store.end_time <= deliver.end_time <= again.end_time


async def test_a_message_that_another_node_lends_has_its_span_on_the_node_that_delivers_it(autojump_clock: Any) -> None:
    rig, spans = MeshRig("a", "b"), {"a": Spans(), "b": Spans()}
    rig.tracers = {name: one.tracer for name, one in spans.items()}

    async with rig.run():
        consumer, sender = await rig.connect("b"), await rig.connect("a")
        await consumer.send(subscribe(QUEUE))
        await consumer.receipt()
        await sender.send(send(QUEUE, "hello", "r", traceparent=SAMPLED))
        await sender.receipt()
        await consumer.next("MESSAGE")

    (store,), (deliver,) = spans["a"].all(), spans["b"].all()
    assert (store.name, deliver.name) == (f"store {QUEUE}", f"deliver {QUEUE}")
    for span in (store, deliver):
        assert_below_the_client(span)
    assert (store.attributes["qmq.node"], deliver.attributes["qmq.node"]) == ("a", "b")
    assert store.attributes["messaging.message.id"] == deliver.attributes["messaging.message.id"]


async def test_a_message_in_a_fanout_and_a_dead_letter_are_stored_in_the_trace(autojump_clock: Any) -> None:
    rig, spans = Rig(), Spans()
    rig.tracer = spans.tracer

    async with rig.run():
        client = await rig.connect()
        await client.send(send("/fanout/events", "", "r", traceparent=SAMPLED))
        await client.receipt()
        await client.send(
            send(QUEUE, "", "r", traceparent=SAMPLED), subscribe(QUEUE, ack="client-individual", delivery_limit="1")
        )
        refused = await client.next("MESSAGE")
        await client.send(f"NACK\nid:{refused.head.headers['ack']}\nreceipt:n\n\n")
        await eventually(lambda: len(spans.all()) == 4)

    assert spans.names()[:2] == ["store /fanout/events", f"store {QUEUE}"]
    assert spans.names()[3].startswith("store /queue/")


@pytest.mark.parametrize(
    "headers",
    [{}, {"traceparent": NOT_SAMPLED}, {"traceparent": "00-nonsense"}, {"x-traceparent": SAMPLED}],
    ids=["none", "not sampled", "malformed", "another name"],
)
async def test_a_message_without_a_sampled_parent_has_no_span(autojump_clock: Any, headers: dict[str, str]) -> None:
    rig, spans = Rig(), Spans()
    rig.tracer = spans.tracer

    async with rig.run():
        client = await rig.connect()
        await client.send(send(QUEUE, "hello", "r", **headers), subscribe(QUEUE))
        await client.next("MESSAGE")
        await nothing_more(client)

    assert spans.names() == []


class Blocked(SpanExporter):
    """Exports nothing until it is freed."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.free.wait()
        return SpanExportResult.FAILURE


class Broken(SpanExporter):
    """Raises."""

    def export(self, spans: Any) -> SpanExportResult:
        raise ZeroDivisionError


class BrokenSampler(Sampler):
    """Raises, in the thread of the node."""

    def should_sample(self, *args: Any, **more: Any) -> Any:
        raise ZeroDivisionError

    def get_description(self) -> str:
        return "broken"


def blocked() -> tuple[TracerProvider, Callable[[], None]]:
    provider, exporter = TracerProvider(), Blocked()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=2, max_export_batch_size=1))
    return provider, exporter.free.set


def broken() -> tuple[TracerProvider, Callable[[], None]]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Broken()))
    return provider, lambda: None


@pytest.mark.parametrize(
    "make",
    [blocked, broken, lambda: (TracerProvider(sampler=BrokenSampler()), lambda: None)],
    ids=["blocked", "broken", "broken sampler"],
)
async def test_an_export_that_hangs_or_fails_disturbs_no_message(
    autojump_clock: Any, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    provider, free = make()
    rig.tracer = provider.get_tracer("tests")

    try:
        async with rig.run():
            client = await rig.connect()
            await client.send(subscribe(QUEUE, ack="client-individual", prefetch_count="100"))
            await client.send(*(send(QUEUE, str(number), "r", traceparent=SAMPLED) for number in range(20)))
            assert await client.consume(20) == [str(number).encode() for number in range(20)]
    finally:
        free()
        provider.shutdown()
    # What fails in the node itself is one line, not one for each message.
    assert caplog.text.count("a span could not be made") <= 1
