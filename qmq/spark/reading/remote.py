"""Live nodes as a place to read from: one more reader of their journals, over STOMP (`/system/journal`).

Every node of a mesh has the records of all nodes, so the work is divided over the nodes that are given. A worker whose
node goes away asks the next one for the remainder. What a node's journal has dropped is not to be had from it: its
fanout logs are read from its data directory.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from qmq.client.connection import NodeConnection
from qmq.errors import NotConnected
from qmq.model.dots import Vector, merge
from qmq.spark.reading.options import BadOption, Options, vector_to_json
from qmq.spark.reading.plan import DataLoss, NodeAddress, Part, loss_text
from qmq.spark.reading.ranges import NOTHING, Lacking, RangeMap, beginning, merged
from qmq.spark.reading.rounds import rounds
from qmq.spark.reading.segments import Extent
from qmq.spark.reading.status import (
    JOURNAL,
    JournalStatus,
    StatusClients,
    ask_status,
    connect,
    next_frame,
    vector_pieces,
    vector_text,
)
from qmq.spark.reading.tables import range_row
from qmq.spark.reading.views import read_batches
from qmq.storage.format.batch import REST, read_head


class Servers:
    """As `files.Files`. Nodes that do not answer are left out, unless none does."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._clients = StatusClients(options)
        self._statuses: list[JournalStatus] = []
        self.lacking = Lacking()
        self.silent: list[str] = []
        self._look()

    def available(self) -> Vector:
        self._look()
        return self._have()

    def base(self) -> Vector:
        """Behind what nodes gave up, and what they got only a rest of: before that, their journals may have some
        records, and not those that follow. Of fanouts alone a rest has all that there is.
        """
        self._look()
        return self._base()

    def _base(self) -> Vector:
        """The same of what was seen at the last look. Of a rest only the end is known: all before it may be one."""
        held, excused = RangeMap(), RangeMap()
        for status in self._statuses:
            excused_here = merged([status.given_up, status.compacted])
            begin = merged([status.base, status.given_up if self._options.only_fanouts else excused_here])
            held = held.plus(RangeMap.between(begin, status.vector))
            excused = excused.plus(RangeMap.between({}, excused_here))
        return beginning(held, excused, self._have())

    def _have(self) -> Vector:
        return merged(status.vector for status in self._statuses)

    def plan(
        self, start: Vector, end: Vector, *, strict: bool, but_for: RangeMap = NOTHING, over_holes: bool = False
    ) -> list[Part]:
        left = RangeMap.between(start, end)
        wanted_records = left.count()
        excused = but_for
        if not strict:
            excused = excused.plus(RangeMap.between({}, self._base()))
        parts: list[Part] = []
        for status in self._statuses:
            for share in _shares(status, left):
                left = left.minus(share)
                for wanted in share.split(self._pieces(share.count(), wanted_records)):
                    servers = self._servers_for(wanted, status, len(parts))
                    # The reader reports what is missing of the first: a status has no holes.
                    for piece, needed in ((wanted.minus(excused), True), (wanted.common(excused), False)):
                        if piece:
                            # Nor are all compacted ranges in a status: not one that has as many records as sequences.
                            parts.append(Part((), piece, servers, needed, over_holes, not strict))
        self.lacking = Lacking(left)
        lost = left.minus(excused)
        if lost and self._options.fail_on_data_loss:
            raise DataLoss(loss_text(lost))
        return parts

    def plan_nodes(self) -> list[Part]:
        return [
            Part((), wanted, (status.server,), strict=False)
            for status in self._statuses
            for wanted in _shares(status, RangeMap.between(status.base, status.vector))
        ]

    def rows(self, view: str) -> list[dict[str, Any]]:
        if view == "segments":
            raise BadOption("segments are files: read them from a path, not from servers")
        make = _range_rows if view == "ranges" else _node_rows
        return [row for status in self._statuses for row in make(status)]

    def report(self, done: Vector) -> None:
        self._clients.done = dict(done)

    def close(self) -> None:
        self._clients.close()

    def _pieces(self, records: int, total: int) -> int:
        """Into how many parts so many of all wanted records go. Nodes report the bytes of all of theirs."""
        held = max(1, sum(status.records() for status in self._statuses))
        size = records * sum(status.bytes for status in self._statuses) // held
        by_count = -(-records * self._options.partitions_min // total)
        return max(by_count, round(size / self._options.partition_bytes))

    def _servers_for(self, wanted: RangeMap, status: JournalStatus, number: int) -> tuple[NodeAddress, ...]:
        """The nodes to ask, in turn: parts begin with different nodes that have all of `wanted` and end with others.

        These may have what one of the first does not have, and most of it when all of those are down.
        """
        having = [p.server for p in self._statuses if p is status or not wanted.minus(p.held())]
        shift = number % len(having)
        others = [p.server for p in self._statuses if p.server not in having]
        return (*having[shift:], *having[:shift], *others)

    def _look(self) -> None:
        """The first look asks once: the addresses may be wrong. Nodes that have answered are waited for."""
        for _ in rounds(self._options.retry_seconds if self._statuses else 0.0):
            found: list[JournalStatus] = []
            problems: list[str] = []
            for server in self._options.servers:
                try:
                    found.append(self._clients.ask(server))
                except NotConnected as error:
                    problems.append(str(error))
            if found:
                self._statuses = found
                answering = {status.server for status in found}
                self.silent = [_server_text(server) for server in self._options.servers if server not in answering]
                return
        raise NotConnected("; ".join(problems))


def read_part(
    part: Part, options: Options, columns: Sequence[str], lacking: Lacking | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one part, from whichever of its nodes has them. What none has is added to `lacking`.

    Raises:
        DataLoss: none has all of them, and the part and `options` call that an error.
        NotConnected: no node answers.
    """
    assert part.wanted is not None
    left = missing = part.wanted
    holes = RangeMap()
    problem: NotConnected | None = None
    for compacted in (False, True):
        found_compacted = False
        for _ in rounds(options.retry_seconds):
            problem = None
            for server in part.servers:
                try:
                    with connect(options, server) as client:
                        for node, data in _batches(client, left):
                            got = RangeMap()
                            passed = _passed_over(data, compacted=compacted)
                            found_compacted = found_compacted or bool(passed)
                            extent = Extent("", node, 0, 0, len(data), passed)
                            yield from read_batches(data, extent, left, options, columns, got)
                            left = left.minus(got)
                        if left and part.over_holes:
                            # As it is now: what has been dropped meanwhile is no hole.
                            holes = holes.plus(ask_status(client, server).held())
                except NotConnected as error:
                    problem = error
                if not left:
                    break
            if problem is None or not left:
                break
        if left and problem is not None:
            raise problem
        if options.only_fanouts or not compacted:
            missing = left
        may_be_compacted = not compacted and found_compacted
        is_reported = may_be_compacted and (options.only_fanouts or part.over_compacted)
        lost = left.minus(holes)
        if lost and part.strict and options.fail_on_data_loss and not is_reported:
            raise DataLoss(loss_text(lost))
        if not left or not may_be_compacted:
            break
    if lacking is not None:
        lacking.add(missing, missing.minus(left))


def _passed_over(data: bytes, *, compacted: bool) -> tuple[tuple[int, int], ...]:
    """Where in a run of batches those stand that are not to be read: first the rests (see `plan`), then all others."""
    places: list[tuple[int, int]] = []
    offset = 0
    while offset < len(data):
        head = read_head(data, offset)
        if head is None:
            break  # reported by the reader of that batch
        if bool(head.attributes & REST) != compacted:
            places.append((offset, offset + head.size))
        offset += head.size
    return tuple(places)


def read_journal(options: Options) -> tuple[JournalStatus, Iterator[bytes]]:
    """Everything that the first of `options.servers` has now, from the base of its journal on: runs of whole batches.

    The runs may have a little more than the status says. Its base is that of the end once all of them were taken: what
    the node has dropped meanwhile may not have come. Raises NotConnected or Refused.
    """
    server = options.servers[0]
    client = connect(options, server)
    try:
        status = ask_status(client, server)
    except BaseException:
        client.close()
        raise

    def runs() -> Iterator[bytes]:
        with client:
            for _, data in _batches(client, RangeMap.between(status.base, status.vector)):
                yield data
            merge(status.base, ask_status(client, server).base)

    return status, runs()


def _batches(client: NodeConnection, wanted: RangeMap) -> Iterator[tuple[str, bytes]]:
    """Name of the node, and whole batches that hold something of `wanted`: of each origin in the order of its journal.

    More origins than a header takes are asked for one group after the other.
    """
    after, until = wanted.bounds()
    for group in vector_pieces(list(until.items())):
        since = {origin: after[origin] for origin, _ in group}
        headers = [("qmq-resume", vector_text(since)), ("qmq-until", vector_text(dict(group)))]
        client.write(client.frame("SUBSCRIBE", [("id", "read"), ("destination", JOURNAL), *headers]))
        node = str(json.loads(next_frame(client).body)["node"])
        while True:
            frame = next_frame(client)
            if frame.head.headers.get("journal") == "end":
                break
            yield node, frame.body
        client.write(client.frame("UNSUBSCRIBE", [("id", "read")]))


def _shares(status: JournalStatus, wanted: RangeMap) -> Iterator[RangeMap]:
    """What a node has of `wanted`, a segment at a time."""
    begin = status.base
    for end in [*status.segments, status.vector]:
        share = RangeMap.between(begin, end).common(wanted)
        if share:
            yield share
        begin = end


def _range_rows(status: JournalStatus) -> Iterator[dict[str, Any]]:
    for origin, ranges in sorted(status.held().items()):
        for after, through in ranges:
            yield range_row(status.node, origin, after + 1, through)


def _node_rows(status: JournalStatus) -> Iterator[dict[str, Any]]:
    yield {
        "node": status.node,
        "source": _server_text(status.server),
        "origins": len(status.vector),
        "records": status.records(),
        "bytes": status.bytes,
        "damaged": None,
        "vector": list(vector_to_json(status.vector).items()),
    }


def _server_text(server: NodeAddress) -> str:
    return str(server) if isinstance(server, Path) else f"{server[0]}:{server[1]}"
