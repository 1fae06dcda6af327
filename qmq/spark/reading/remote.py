"""Live nodes as a place to read from: one more reader of their journals, over STOMP (`/system/journal`).

Every node of a mesh has the records of all nodes, so the work is divided over the nodes that are given. A worker whose
node goes away asks the next one for the remainder. What a node's journal has dropped is not to be had from it: its
fanout logs are read from its data directory.
"""

import json
import ssl
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from qmq.client.connection import NodeConnection
from qmq.client.core.failures import error_of
from qmq.errors import NotConnected
from qmq.model.dots import Origin, Vector, merge
from qmq.spark.reading.options import BadOption, Options, vector_from_json, vector_to_json
from qmq.spark.reading.plan import DataLoss, Part, loss_text
from qmq.spark.reading.ranges import NOTHING, RangeMap, beginning
from qmq.spark.reading.segments import Extent
from qmq.spark.reading.views import read_batches
from qmq.storage.format.batch import REST, read_head

JOURNAL: Final = "/system/journal"
PATIENCE_SECONDS: Final = 30.0
"""Without a byte from a node that owes some."""
VECTOR_BYTES_MAX: Final = 7000
"""Of one header: a node takes lines of 8 KiB unless configured otherwise. That is some 200 origins."""
ELSEWHERE: Final = frozenset({"stopping", "too-many-connections", "too-many-logins", "login-timeout", "log-unreadable"})
"""Codes of errors after which another node may be asked."""


class JournalStatus:
    """What one node reports about its journal."""

    def __init__(self, server: tuple[str, int], facts: dict[str, Any]) -> None:
        self.server = server
        self.node = str(facts["node"])
        self.vector = vector_from_json(facts["vector"])
        self.base = vector_from_json(facts["base"])
        self.given_up = vector_from_json(facts["given_up"])
        self.compacted = vector_from_json(facts["rests"])
        self.bytes = int(facts["bytes"])
        self.segments = [vector_from_json(vector) for vector in facts["segments"]]
        """Vectors where a segment ends and the next one begins."""

    def held(self) -> RangeMap:
        """The sequences of its journal, gaps included."""
        return RangeMap.between(self.base, self.vector)

    def records(self) -> int:
        """What its journal holds, about: gaps count as if they were there."""
        return sum(max(0, last - self.base.get(origin, 0)) for origin, last in self.vector.items())


class Servers:
    """See `place.Place`. Nodes that do not answer are left out, unless none does."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._clients: dict[tuple[str, int], NodeConnection] = {}
        self._done: Vector = {}
        self._statuses: list[JournalStatus] = []
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
            excused_here = dict(status.given_up)
            merge(excused_here, status.compacted)
            begin = dict(status.base)
            merge(begin, status.given_up if self._options.only_fanouts else excused_here)
            held = held.plus(RangeMap.between(begin, status.vector))
            excused = excused.plus(RangeMap.between({}, excused_here))
        return beginning(held, excused, self._have())

    def _have(self) -> Vector:
        have: Vector = {}
        for status in self._statuses:
            merge(have, status.vector)
        return have

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
        lost = left.minus(excused)
        if lost and self._options.fail_on_data_loss:
            raise DataLoss(loss_text(lost), lost)
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
        self._done = dict(done)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _pieces(self, records: int, total: int) -> int:
        """Into how many parts so many of all wanted records go. Nodes report the bytes of all of theirs."""
        held = max(1, sum(status.records() for status in self._statuses))
        size = records * sum(status.bytes for status in self._statuses) // held
        by_count = -(-records * self._options.partitions_min // total)
        return max(by_count, round(size / self._options.partition_bytes))

    def _servers_for(self, wanted: RangeMap, status: JournalStatus, number: int) -> tuple[tuple[str, int], ...]:
        """The nodes to ask, in turn: parts begin with different nodes that have all of `wanted` and end with others.

        These may have what one of the first does not have, and most of it when all of those are down.
        """
        having = [p.server for p in self._statuses if p is status or not wanted.minus(p.held())]
        shift = number % len(having)
        others = [p.server for p in self._statuses if p.server not in having]
        return (*having[shift:], *having[:shift], *others)

    def _done_at(self, server: tuple[str, int]) -> Vector:
        """How far the query has come with what this node has; the offset itself keeps every origin there ever was.

        Only for people to see, so what is too much for a header is left out.
        """
        have = next((status.vector for status in self._statuses if status.server == server), {})
        done = {origin: self._done[origin] for origin in have if origin in self._done}
        return dict(next(_pieces(list(done.items())), []))

    def _look(self) -> None:
        found: list[JournalStatus] = []
        problems: list[str] = []
        for server in self._options.servers:
            try:
                found.append(self._check(server))
            except NotConnected as error:
                problems.append(str(error))
        if not found:
            raise NotConnected("; ".join(problems))
        self._statuses = found

    def _check(self, server: tuple[str, int]) -> JournalStatus:
        known = self._clients.pop(server, None)
        if known is not None:
            try:
                return self._ask(server, known)
            except NotConnected:
                pass  # The node may have been started again since: that takes a new connection.
        return self._ask(server, connect(self._options, server))

    def _ask(self, server: tuple[str, int], client: NodeConnection) -> JournalStatus:
        """The connection is kept if it answers, and closed otherwise."""
        try:
            status = self._status_of(server, client)
        except BaseException:
            client.close()
            raise
        self._clients[server] = client
        return status

    def _status_of(self, server: tuple[str, int], client: NodeConnection) -> JournalStatus:
        headers = []
        if self._options.name:
            headers += [("qmq-resume", _text(self._done_at(server))), ("qmq-reader", self._options.name)]
        return _status(client, server, headers)


class _Client(NodeConnection):
    """A node that stops or has no room is as good as one that does not answer: others go on."""

    def refusal(self, frame: Any) -> Exception:
        error = error_of(frame)
        is_elsewhere = error.code in ELSEWHERE
        return self.failure(f"{self.address}: {error.message}") if is_elsewhere else super().refusal(frame)


def connect(options: Options, server: tuple[str, int]) -> NodeConnection:
    """A connection to one node. Raises NotConnected or Refused."""
    tls = ssl.create_default_context(cafile=options.cafile) if options.cafile else None
    return _Client(server, login=options.login, passcode=options.passcode, timeout_seconds=PATIENCE_SECONDS, tls=tls)


def read_part(part: Part, options: Options, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of one part, from whichever of its nodes has them.

    Raises:
        DataLoss: none has all of them, and the part and `options` call that an error.
        NotConnected: no node answers.
    """
    assert part.wanted is not None
    left, holes = part.wanted, RangeMap()
    problem: NotConnected | None = None
    for compacted in (False, True):
        found_compacted = False
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
                        holes = holes.plus(_status(client, server).held())
            except NotConnected as error:
                problem = error
            if not left:
                return
        if problem is not None:
            raise problem
        may_be_compacted = not compacted and found_compacted
        is_reported = may_be_compacted and (options.only_fanouts or part.over_compacted)
        lost = left.minus(holes)
        if lost and part.strict and options.fail_on_data_loss and not is_reported:
            raise DataLoss(loss_text(lost))
        if not may_be_compacted:
            return


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
        status = _status(client, server)
    except BaseException:
        client.close()
        raise

    def runs() -> Iterator[bytes]:
        with client:
            for _, data in _batches(client, RangeMap.between(status.base, status.vector)):
                yield data
            merge(status.base, _status(client, server).base)

    return status, runs()


def _status(client: NodeConnection, server: tuple[str, int], headers: Sequence[tuple[str, str]] = ()) -> JournalStatus:
    """What the node reports about its journal now."""
    # A span that is over before it begins: only the status is sent.
    asked = [("id", "look"), ("destination", JOURNAL), ("qmq-until", ""), *headers]
    client.write(client.frame("SUBSCRIBE", asked))
    status = JournalStatus(server, json.loads(_next(client).body))
    while _next_header(client) != "end":
        continue
    client.write(client.frame("UNSUBSCRIBE", [("id", "look")]))
    return status


def _batches(client: NodeConnection, wanted: RangeMap) -> Iterator[tuple[str, bytes]]:
    """Name of the node, and whole batches that hold something of `wanted`: of each origin in the order of its journal.

    More origins than a header takes are asked for one group after the other.
    """
    after = {origin: ranges[0][0] for origin, ranges in wanted.items() if ranges}
    until = {origin: ranges[-1][1] for origin, ranges in wanted.items() if ranges}
    for group in _pieces(list(until.items())):
        since = {origin: after[origin] for origin, _ in group}
        headers = [("qmq-resume", _text(since)), ("qmq-until", _text(dict(group)))]
        client.write(client.frame("SUBSCRIBE", [("id", "read"), ("destination", JOURNAL), *headers]))
        node = str(json.loads(_next(client).body)["node"])
        while True:
            frame = _next(client)
            if frame.head.headers.get("journal") == "end":
                break
            yield node, frame.body
        client.write(client.frame("UNSUBSCRIBE", [("id", "read")]))


def _pieces(entries: list[tuple[Origin, int]]) -> Iterator[list[tuple[Origin, int]]]:
    """Entries of a vector, as many at a time as one header takes."""
    piece: list[tuple[Origin, int]] = []
    size = 0
    for origin, last in entries:
        # A colon or a backslash could not stand in a name: nothing grows when it is escaped.
        length = len(f"{origin}=,") + 19
        if piece and size + length > VECTOR_BYTES_MAX:
            yield piece
            piece, size = [], 0
        piece.append((origin, last))
        size += length
    if piece:
        yield piece


def _next(client: NodeConnection) -> Any:
    frame = client.receive(PATIENCE_SECONDS)
    if frame is None:
        raise NotConnected(f"{client.address}: silent for {PATIENCE_SECONDS:g} s")
    return frame


def _next_header(client: NodeConnection) -> str | None:
    found: str | None = _next(client).head.headers.get("journal")
    return found


def _shares(status: JournalStatus, wanted: RangeMap) -> Iterator[RangeMap]:
    """What a node has of `wanted`, a segment at a time."""
    begin = status.base
    for end in [*status.segments, status.vector]:
        share = RangeMap.between(begin, end).common(wanted)
        if share:
            yield share
        begin = end


def _range_rows(status: JournalStatus) -> Iterator[dict[str, Any]]:
    for origin, last in sorted(status.vector.items()):
        first = status.base.get(origin, 0) + 1
        if first <= last:
            row = {"node": status.node, "origin": str(origin), "first": first, "last": last}
            yield {**row, "first_timestamp": None, "last_timestamp": None}


def _node_rows(status: JournalStatus) -> Iterator[dict[str, Any]]:
    yield {
        "node": status.node,
        "source": f"{status.server[0]}:{status.server[1]}",
        "origins": len(status.vector),
        "records": status.records(),
        "bytes": status.bytes,
        "damaged": None,
        "vector": list(vector_to_json(status.vector).items()),
    }


def _text(vector: Vector) -> str:
    return ",".join(f"{origin}={last}" for origin, last in vector.items())
