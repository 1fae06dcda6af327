"""`df.write.format("qmq")`: rows as SENDs with receipts, so that a task ends only when its messages are recorded.

Every message carries a `dedup-id`, made from what stays the same when Spark tries a task or a batch again: the name of
the query, the batch, the partition and the row's place in it; or the value of a column, when rows have a name of their
own. The nodes append a message once per id (docs/guarantees.md says within which bound), so a retried batch appends
nothing twice. After a shuffle rows come in another order each time: then only a column names them.

Messages of a task that failed stay published; its retry repeats them, with the same ids.
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from qmq.client.connection import NodeConnection
from qmq.errors import NotConnected
from qmq.spark.reading.options import BOTH, WRITING, BadOption, Options, known_options, read_options
from qmq.spark.reading.rounds import rounds
from qmq.spark.reading.status import PATIENCE_SECONDS, connect

WINDOW: Final = 1000
"""SENDs without a receipt at most: beyond that a task waits."""
WINDOW_BYTES: Final = 16 << 20
"""Bodies of these, about: a task keeps them all until they are receipted, and must get them out within its patience."""
PACE_SECONDS: Final = 0.05
"""A task with a rate sends in bursts of about so long."""
COLUMNS: Final = {"destination": "string", "body": "binary or string", "headers": "map<string,string>"}
NOT_OURS: Final = frozenset({"path", "checkpointlocation"})
"""What Spark itself adds to the options of a sink."""
OWN_HEADERS: Final = frozenset({"destination", "receipt", "content-length", "dedup-id", "redelivered"})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """`dedup` is a column; the name in `options` begins every dedup id that is made here. `rate`: messages per second
    of one task.
    """

    options: Options
    destination: str | None
    dedup: str | None
    rate: float | None = None


class Published(WriterCommitMessage):
    """What one task did."""

    def __init__(self, messages: int) -> None:
        self.messages = messages


def read_sink_options(given: Mapping[str, str], columns: Sequence[str], *, overwrite: bool) -> SinkOptions:
    """Raises BadOption for what cannot be published."""
    if overwrite:
        raise BadOption("messages are only added: say .mode('append')")
    said = known_options({key: value for key, value in given.items() if key.lower() not in NOT_OURS})
    for name in said.keys() - WRITING - BOTH:
        raise BadOption(f"{name} is an option of reading; those of writing are {', '.join(sorted(WRITING | BOTH))}")
    if not said.get("servers"):
        raise BadOption("say to which nodes to publish: servers = host:port, …")
    options = read_options({name: said[name] for name in said.keys() & BOTH})
    destination, dedup = said.get("destination"), said.get("dedup")
    if destination is None and "destination" not in columns:
        raise BadOption("say where to send: an option destination, or a column destination")
    if "body" not in columns:
        raise BadOption("a column body is wanted (binary or string)")
    if dedup is not None and dedup not in columns:
        raise BadOption(f"dedup names a column, and there is no {dedup}; there are {', '.join(columns)}")
    extra = [name for name in columns if name not in COLUMNS and name != dedup]
    if extra:
        known = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        raise BadOption(f"the sink does not know the columns {', '.join(extra)}; it knows {known}, and that of dedup")
    return SinkOptions(options, destination, dedup, _rate(said.get("rate")))


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise BadOption(f"rate is {text!r}; it must be a number of messages per second, above 0")
    return rate


class Sink(DataSourceArrowWriter):
    """One batch write. `name` should be given when it may be run again: without it the ids are this run's own."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = options.options.name or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        context = TaskContext.get()
        assert context is not None
        return Published(publish(self._options, f"{self._run}-{context.partitionId()}", iterator))


class StreamSink(DataSourceStreamArrowWriter):
    """A streaming write: the ids are made from the query's id and the number of the micro-batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        query = context.getLocalProperty("sql.streaming.queryId")
        id = stream_id(self._options.options.name, query, batch, context.partitionId())
        return Published(publish(self._options, id, iterator))


def stream_id(name: str, query: str, batch: str, partition: int) -> str:
    """What dedup ids of one task begin with.

    The query's own id, which its checkpoint keeps, is always in it: under a new checkpoint batch 0 has other rows, and
    must not pass for the old one because the name is the same.
    """
    return "-".join(filter(None, (name, query, batch, str(partition))))


def publish(options: SinkOptions, id: str, batches: Iterator[pa.RecordBatch]) -> int:
    """SEND every row and wait for all receipts; returns how many.

    When a node goes away, what has no receipt goes to the next one, with the same dedup ids.

    Raises:
        Refused: a node refuses (unknown destination, no permission, a full queue).
        NotConnected: no node accepts a login any more.
    """
    began = time.monotonic()
    with closing(_Sender(options.options)) as sender:
        for number, (destination, body, headers, name) in enumerate(_rows(options, batches)):
            if options.rate is not None:
                ahead = began + number / options.rate - time.monotonic()
                if ahead > PACE_SECONDS:
                    sender.finish()
                    time.sleep(ahead)
            sender.send(destination, body, headers, f"{id}-{number}" if name is None else name)
        sender.finish()
    return sender.sent


class _Sender:
    """A connection to one node of several, and what it has not receipted."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._client: NodeConnection | None = None
        self._unreceipted: dict[str, tuple[list[tuple[str, str]], bytes]] = {}
        """By receipt, in the order in which they were sent."""
        self._bytes = 0
        """Of the bodies in `_unreceipted`."""
        self._buffer: list[bytes] = []
        self._turn = 0
        self._tries: Iterator[None] | None = None
        """Of all servers, since the last receipt."""
        self.sent = 0

    def send(self, destination: str, body: bytes, headers: list[tuple[str, str]], dedup_id: str) -> None:
        self.sent += 1
        receipt = str(self.sent)
        # An earlier run may have sent it to any node: the node asks its peers.
        own = [("destination", destination), ("receipt", receipt), ("dedup-id", dedup_id), ("redelivered", "true")]
        lines = [*own, *headers]
        self._unreceipted[receipt] = lines, body
        self._bytes += len(body)
        if self._client is None:
            self._reconnect()
        else:
            self._buffer.append(self._client.frame("SEND", lines, body))
        if self._bytes >= WINDOW_BYTES:
            self._flush(1 + len(self._unreceipted) // 2)
        elif len(self._buffer) >= WINDOW // 4:
            self._flush(WINDOW)

    def finish(self) -> None:
        """Wait for all receipts."""
        while self._unreceipted:
            self._flush(1)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _flush(self, window: int) -> None:
        """Write what waits, then take receipts until fewer than `window` are missing."""
        try:
            if self._client is None:
                self._reconnect()
            assert self._client is not None
            data, self._buffer = b"".join(self._buffer), []
            self._client.write(data)
            while len(self._unreceipted) >= window:
                frame = self._client.receive(PATIENCE_SECONDS)
                if frame is None:
                    raise NotConnected(f"{self._client.address}: no receipt within {PATIENCE_SECONDS:g} s")
                self._receipted(frame.head.headers.get("receipt-id", ""))
        except NotConnected:
            self._reconnect()

    def _receipted(self, receipt: str) -> None:
        self._tries = None
        # Receipts may come in another order when messages go to several destinations.
        _, body = self._unreceipted.pop(receipt, (None, b""))
        self._bytes -= len(body)

    def _reconnect(self) -> None:
        """The next node, and everything again that has no receipt. Raises NotConnected after the last try."""
        self.close()
        self._client = None
        problem: NotConnected | None = None
        self._tries = self._tries or self._each_server()
        for _ in self._tries:
            server = self._options.servers[self._turn % len(self._options.servers)]
            self._turn += 1
            try:
                self._client = connect(self._options, server)
                break
            except NotConnected as error:
                problem = error
        else:
            raise problem or NotConnected("no node takes the messages")
        client = self._client
        self._buffer = [client.frame("SEND", lines, body) for lines, body in self._unreceipted.values()]

    def _each_server(self) -> Iterator[None]:
        for _ in rounds(self._options.retry_seconds):
            yield from [None] * len(self._options.servers)


def _rows(
    options: SinkOptions, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[str, bytes, list[tuple[str, str]], str | None]]:
    """Destination, body, headers and the row's own name, if it has one. Raises BadOption for rows without them."""
    for batch in batches:
        names = batch.schema.names
        bodies = batch.column("body").to_pylist()
        count = len(bodies)
        if options.destination is None:
            destinations = batch.column("destination").to_pylist()
        else:
            destinations = [options.destination] * count
        headers = batch.column("headers").to_pylist() if "headers" in names else [None] * count
        ids = batch.column(options.dedup).to_pylist() if options.dedup is not None else [None] * count
        for destination, body, pairs, name in zip(destinations, bodies, headers, ids, strict=True):
            if not destination:
                raise BadOption("a row has no destination")
            if options.dedup is not None and name is None:
                raise BadOption(f"a row has nothing in the column {options.dedup}")
            lines = [(key, value or "") for key, value in pairs or () if key not in OWN_HEADERS]
            yield destination, _bytes(body), lines, None if name is None else str(name)


def _bytes(body: Any) -> bytes:
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes):
        return body
    return json.dumps(body, default=str).encode()
