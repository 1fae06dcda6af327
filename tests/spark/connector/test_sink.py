"""The sink, without Spark: which messages rows become, and what happens when a node stops or refuses."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from qmq.errors import NotConnected
from qmq.spark import sink
from qmq.spark.reading.options import BadOption
from qmq.spark.sink import publish, read_sink_options, stream_id
from tests.spark.stub import Stub


def batches(**columns: Any) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict(columns)


def test_rows_are_sent_with_headers_and_names_that_stay_the_same(stub: Stub) -> None:
    columns = ["destination", "body", "headers"]
    options = read_sink_options({"servers": stub.address}, columns, overwrite=False)
    rows = {
        "destination": ["/queue/a", "/queue/b"],
        "body": [b"one", b"two"],
        "headers": pa.array([[("x", "1")], None], pa.map_(pa.string(), pa.string())),
    }

    for _ in range(2):
        assert publish(options, "job-0", batches(**rows)) == 2

    seen = [(frame.head.headers["destination"], frame.body, frame.head.headers["dedup-id"]) for frame in stub.sends]
    assert seen == [("/queue/a", b"one", "job-0-0"), ("/queue/b", b"two", "job-0-1")] * 2
    assert [frame.head.headers.get("x") for frame in stub.sends[:2]] == ["1", None]


def test_a_column_may_name_rows(stub: Stub) -> None:
    said = {"servers": stub.address, "destination": "/queue/a", "dedup": "key"}
    options = read_sink_options(said, ["body", "key"], overwrite=False)

    publish(options, "job-0", batches(body=["text", "more"], key=[7, 8]))

    assert [(frame.body, frame.head.headers["dedup-id"]) for frame in stub.sends] == [(b"text", "7"), (b"more", "8")]


def test_what_has_no_receipt_goes_to_the_next_node_in_its_order(stub: Stub) -> None:
    dying = Stub([700])
    said = {"servers": f"{dying.address},{stub.address}", "destination": "/queue/a"}
    options = read_sink_options(said, ["body"], overwrite=False)

    publish(options, "job", batches(body=[str(number) for number in range(3000)]))
    dying.close()

    bodies = [int(frame.body) for frame in stub.sends]
    assert bodies == list(range(bodies[0], 3000))
    assert {int(frame.body) for frame in dying.sends} | set(bodies) == set(range(3000))
    assert all(frame.head.headers["dedup-id"] == f"job-{int(frame.body)}" for frame in stub.sends)


def test_when_no_node_takes_anything_the_job_waits_longer_each_time_and_then_says_so(pauses: list[float]) -> None:
    dead, other = Stub([]), Stub([])
    dead.close()
    other.close()
    said = {"servers": f"{dead.address},{other.address}", "destination": "/queue/a", "retryTimeout": "10s"}
    options = read_sink_options(said, ["body"], overwrite=False)

    with pytest.raises(NotConnected, match=r"^127\.0\.0\.1:\d+: .*; is a node running there"):
        publish(options, "job", batches(body=["x"]))

    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 2.25]


def test_a_node_that_takes_logins_and_no_messages_is_given_up_as_well(pauses: list[float]) -> None:
    closing = Stub([0] * 100)
    said = {"servers": closing.address, "destination": "/queue/a", "retryTimeout": "1s"}
    options = read_sink_options(said, ["body"], overwrite=False)

    with pytest.raises(NotConnected, match="no node takes the messages"):
        publish(options, "job", batches(body=["x"]))

    closing.close()
    assert pauses == [0.25, 0.5, 0.25]


def test_a_node_that_comes_back_during_a_pause_gets_the_rest(
    stub: Stub, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mesh of one node that is started again."""
    options = read_sink_options({"servers": stub.address, "destination": "/queue/a"}, ["body"], overwrite=False)
    connect, refusals = sink.connect, [NotConnected("not yet"), NotConnected("not yet")]

    def later(*said: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return connect(*said)

    monkeypatch.setattr(sink, "connect", later)

    assert publish(options, "job", batches(body=["x", "y"])) == 2
    assert [frame.body for frame in stub.sends] == [b"x", b"y"] and pauses == [0.25, 0.5]


@pytest.mark.parametrize(
    ("said", "columns", "overwrite", "hint"),
    [
        ({"destination": "/queue/a"}, ["body"], False, "to which nodes"),
        ({"servers": "h:1"}, ["body"], False, "say where to send"),
        ({"servers": "h:1", "destination": "/queue/a"}, ["text"], False, "column body"),
        ({"servers": "h:1", "destination": "/queue/a"}, ["body", "x"], False, "does not know the columns x"),
        ({"servers": "h:1", "destination": "/queue/a", "dedup": "k"}, ["body"], False, "there is no k"),
        ({"servers": "h:1", "destination": "/queue/a", "rate": "0"}, ["body"], False, "above 0"),
        (
            {"servers": "h:1", "destination": "/queue/a", "subscribe": "x"},
            ["body"],
            False,
            "subscribe is an option of r",
        ),
        ({"servers": "h:1", "destinaton": "/queue/a"}, ["body"], False, "did you mean destination"),
        ({"servers": "h:1", "destination": "/queue/a"}, ["body"], True, "append"),
    ],
)
def test_what_cannot_be_published_is_refused_before_anything_is_sent(
    said: dict[str, str], columns: list[str], overwrite: bool, hint: str
) -> None:
    with pytest.raises(BadOption, match=hint):
        read_sink_options(said, columns, overwrite=overwrite)


@pytest.mark.parametrize(("column", "value"), [("destination", None), ("key", None)])
def test_a_row_without_what_names_it_ends_the_task(stub: Stub, column: str, value: Any) -> None:
    options = read_sink_options(
        {"servers": stub.address, "dedup": "key"}, ["destination", "body", "key"], overwrite=False
    )
    row = {"destination": ["/queue/a"], "body": ["x"], "key": ["k"], column: pa.array([value], pa.string())}

    with pytest.raises(BadOption, match="a row has no"):
        publish(options, "job", batches(**row))


def test_a_new_checkpoint_gives_other_ids_under_the_same_name() -> None:
    """Batch 0 of it has other rows: with the old ids the nodes would take them for what they have already."""
    assert stream_id("orders", "query-1", "0", 3) != stream_id("orders", "query-2", "0", 3)
    assert stream_id("orders", "query-1", "0", 3) == stream_id("orders", "query-1", "0", 3) == "orders-query-1-0-3"
    assert stream_id("", "query-1", "0", 3) == "query-1-0-3"


def test_big_bodies_wait_for_receipts_long_before_the_window_of_messages_is_full(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "WINDOW_BYTES", 10_000)
    options = read_sink_options({"servers": stub.address, "destination": "/queue/a"}, ["body"], overwrite=False)
    most = 0

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for number in range(100):
            # Whoever asks for another row may have ten bodies of 1 kB that are not receipted.
            most = max(most, number - len(stub.sends))
            yield pa.RecordBatch.from_pydict({"body": [number.to_bytes(1000)]})

    publish(options, "job", rows())

    assert [int.from_bytes(frame.body) for frame in stub.sends] == list(range(100))
    assert most <= 10
