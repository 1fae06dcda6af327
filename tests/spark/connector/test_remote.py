"""Reading from live nodes, without Spark: which node is asked for what, and what happens when one goes away."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from qmq.errors import NotConnected
from qmq.model.dots import Origin, Vector
from qmq.spark.reading import remote
from qmq.spark.reading.options import Options, read_options, vector_to_json
from qmq.spark.reading.plan import DataLoss
from qmq.spark.reading.ranges import RangeMap
from qmq.spark.reading.remote import Servers
from qmq.storage.format.batch import read_head
from qmq.storage.repair.range_snapshot import RangeSnapshot, nothing_left, snapshot_batch
from qmq.wire.stomp import Connection, Frame, Role, Version, encode_frame
from tests.spark.rig import A, B, batch, messages, record, rest, rows, split
from tests.spark.stub import Host


class JournalNode(Host):
    """A node that has `batches` and tells them as `/system/journal` does. It takes header lines of 8 KiB, as nodes do.

    Its first connection ends after `looks` subscriptions; with `refuses`, every one is answered with that ERROR. One
    that is `old` does not say what of its journal is missing for a reason.
    """

    def __init__(
        self,
        batches: list[bytes],
        *,
        looks: int = 1 << 30,
        refuses: str = "",
        base: Vector | None = None,
        given_up: Vector | None = None,
        archives: dict[str, Any] | None = None,
    ) -> None:
        self.asked: list[Frame] = []
        self._batches = batches
        self._looks = [looks]
        self._refuses = refuses
        self._base = base or {}
        self._given_up = given_up or {}
        self.archives = archives or {}
        super().__init__()

    def drop(self, base: Vector) -> None:
        """Retention goes on so far."""
        self._base = base
        heads = [(read_head(data), data) for data in self._batches]
        self._batches = [data for head, data in heads if head is not None and head.last > base.get(head.origin, 0)]

    def _serve(self, peer: socket.socket) -> None:
        codec = Connection(Role.SERVER)
        left = self._looks.pop() if self._looks else 1 << 30
        with peer:
            while data := peer.recv(65536):
                for frame in codec.receive(data):
                    if self._refuses:
                        peer.sendall(encode_frame("ERROR", [("error-code", self._refuses), ("message", "no")]))
                        return
                    if frame.head.command in ("CONNECT", "STOMP"):
                        peer.sendall(encode_frame("CONNECTED", [("version", "1.2")]))
                    elif frame.head.command == "SUBSCRIBE":
                        if not left:
                            return
                        left -= 1
                        self.asked.append(frame)
                        peer.sendall(b"".join(self._told(frame)))
                if codec.error is not None:
                    return

    def _told(self, frame: Frame) -> Iterator[bytes]:
        vector = self._vector()
        picture = {"node": "a", "vector": vector_to_json(vector), "bytes": 1, "segments": [], "archives": self.archives}
        picture["base"] = vector_to_json(self._base)
        picture["given_up"] = vector_to_json(self._given_up)
        picture["rests"] = vector_to_json(self._rests())
        yield _message([("journal", "picture")], json.dumps(picture).encode())
        until = frame.head.headers["qmq-until"]
        for data in self._batches:
            head = read_head(data)
            if head is not None and f"{head.origin}=" in until:
                yield _message([], data)
        yield _message([("journal", "end")], b"")

    def _vector(self) -> Vector:
        heads = [read_head(data) for data in self._batches]
        return {head.origin: head.last for head in heads if head is not None}

    def _rests(self) -> Vector:
        heads = [read_head(data) for data in self._batches]
        # As `storage.log.compacted_ranges` has it: by numbers.
        return {head.origin: head.last for head in heads if head is not None and head.count <= head.last - head.first}


def _message(headers: list[tuple[str, str]], body: bytes) -> bytes:
    return encode_frame("MESSAGE", [("subscription", "x"), *headers], body, version=Version.V12)


def asked(*nodes: JournalNode, **said: str) -> Options:
    return read_options({"servers": ",".join(node.address for node in nodes), **said})


def read(options: Options) -> list[int]:
    servers = Servers(options)
    try:
        parts = servers.plan({}, servers.available(), strict=True)
    finally:
        servers.close()
    return sorted(row["sequence"] for row in rows(parts, options, ["sequence"]))


def test_a_node_that_was_started_again_between_two_looks_is_asked_again() -> None:
    node = JournalNode(split(A, 1, 10, 5), looks=1)
    servers = Servers(asked(node))

    assert servers.available() == {A: 10}
    servers.close()


def test_nodes_that_have_answered_are_waited_for_and_others_are_not(pauses: list[float]) -> None:
    node = JournalNode(split(A, 1, 10, 5), looks=1)
    servers = Servers(asked(node, retryTimeout="1s"))
    node.close()

    with pytest.raises(NotConnected, match="is a node running there"):
        servers.available()
    servers.close()
    assert pauses == [0.25, 0.5, 0.25]
    with pytest.raises(NotConnected):
        Servers(asked(node))
    assert len(pauses) == 3


def test_a_task_waits_for_a_node_that_restarts(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    node = JournalNode(split(A, 1, 10, 5))
    options = asked(node)
    servers = Servers(options)
    parts = servers.plan({}, servers.available(), strict=True)
    servers.close()
    connect, refusals = remote.connect, [NotConnected("not yet"), NotConnected("not yet")]

    def later(*said: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return connect(*said)

    monkeypatch.setattr(remote, "connect", later)

    assert [row["sequence"] for row in rows(parts, options, ["sequence"])] == list(range(1, 11))
    assert pauses == [0.25, 0.5]


@pytest.mark.parametrize("code", ["stopping", "too-many-connections"])
def test_a_node_that_stops_or_is_full_is_left_out(code: str) -> None:
    refusing, node = JournalNode([], refuses=code), JournalNode(split(A, 1, 10, 5))

    assert read(asked(refusing, node)) == list(range(1, 11))
    with pytest.raises(NotConnected, match="no"):
        Servers(asked(refusing))


@pytest.mark.parametrize("given_up", [{}, {A: 10}])
def test_a_reader_of_all_there_is_learns_what_is_missing_in_the_midst_for_no_reason(given_up: Vector) -> None:
    node = JournalNode(
        [*split(A, 11, 20, 5), *split(A, 31, 40, 5)], base={} if given_up else {A: 10}, given_up=given_up
    )
    options = asked(node)
    careless = asked(node, failOnDataLoss="false")
    servers = Servers(options)
    parts = servers.plan({}, {A: 40}, strict=False)
    servers.close()

    with pytest.raises(DataLoss, match=f"{A} from 21 to 30"):
        rows(parts, options, ["sequence"])
    assert len(rows(parts, careless, ["sequence"])) == 20


def test_a_reader_of_all_there_is_gets_no_gap_for_lost_and_compacted_ranges() -> None:
    left = rest(A, 11, 20, [record(17), record(20)])
    node = JournalNode([*split(A, 1, 10, 5), left, *split(A, 31, 40, 5)], given_up={A: 30})
    options = asked(node)
    servers = Servers(options)
    parts = servers.plan({}, {A: 40}, strict=False)
    servers.close()

    assert sorted(row["sequence"] for row in rows(parts, options, ["sequence"])) == [
        *range(1, 11),
        17,
        20,
        *range(31, 41),
    ]


def test_a_reader_of_all_there_is_gets_no_gap_for_snapshots_that_no_status_names() -> None:
    """They have as many records as sequences: one where nothing is left of 6, one where only 10 is not."""
    marked = [snapshot_batch(A, 5, nothing_left(6)), snapshot_batch(A, 6, RangeSnapshot(10, 0, 0, messages(7, 9)))]
    options = asked(JournalNode([*split(A, 1, 5, 5), *marked, *split(A, 11, 15, 5)]))
    servers = Servers(options)
    parts = servers.plan({}, {A: 15}, strict=False)
    strict = servers.plan({}, {A: 15}, strict=True)
    servers.close()

    assert sorted(row["sequence"] for row in rows(parts, options, ["sequence"])) == [
        *range(1, 6),
        7,
        8,
        9,
        *range(11, 16),
    ]
    with pytest.raises(DataLoss, match=f"{A} from 6 to 10"):
        rows(strict, options, ["sequence"])


def test_what_one_node_has_dropped_and_another_has_not_got_yet_is_missing_for_no_reason() -> None:
    options = asked(JournalNode(split(A, 1, 30, 5)), JournalNode(split(A, 51, 60, 5), base={A: 50}))
    servers = Servers(options)

    base = servers.base()
    with pytest.raises(DataLoss, match=f"{A} from 31 to 50"):
        servers.plan({}, {A: 60}, strict=False)
    parts = servers.plan({}, {A: 60}, strict=False, but_for=RangeMap.between({A: 30}, {A: 50}))
    servers.close()

    assert base == {A: 0}
    assert len(rows(parts, options, ["sequence"])) == 40


def test_a_stream_from_the_earliest_begins_behind_what_one_node_gave_up_and_another_has_not_got_yet() -> None:
    options = asked(JournalNode(split(A, 1, 30, 5)), JournalNode(split(A, 51, 60, 5), given_up={A: 50}))
    servers = Servers(options)

    base = servers.base()
    found = rows(servers.plan(base, servers.available(), strict=True), options, ["sequence"])
    everything = rows(servers.plan({}, servers.available(), strict=False), options, ["sequence"])
    servers.close()

    assert base == {A: 50} and len(found) == 10
    assert len(everything) == 40


def test_a_first_archive_takes_what_there_is_whatever_it_lacks() -> None:
    options = asked(JournalNode([*split(A, 1, 20, 5), *split(A, 31, 40, 5)]))
    servers = Servers(options)
    parts = servers.plan({}, {A: 40}, strict=False, but_for=RangeMap.between({}, {A: 40}))
    servers.close()

    assert len(rows(parts, options, ["sequence"])) == 30


def test_more_origins_than_a_header_takes_are_read() -> None:
    """Each life of a node is one, and a mesh may have seen hundreds."""
    lives = [Origin("a-node-with-a-name-of-some-length"[:32], life) for life in range(1, 601)]
    node = JournalNode([batch(origin, 1, messages(1, 1)) for origin in lives])
    options = asked(node, name="orders")

    assert read(options) == [1] * 600
    servers = Servers(options)
    servers.report({origin: 1 for origin in [*lives, A]})
    assert servers.available() == {origin: 1 for origin in lives}
    assert str(A) not in node.asked[-1].head.headers["qmq-resume"]
    servers.close()


def test_a_stream_from_the_earliest_begins_behind_what_all_nodes_gave_up() -> None:
    late = JournalNode(split(A, 101, 110, 5), given_up={A: 100})
    later = JournalNode([*split(A, 106, 110, 5), *split(B, 1, 4, 2)], given_up={A: 105})
    options = asked(late, later)
    servers = Servers(options)

    base = servers.base()
    found = rows(servers.plan(base, servers.available(), strict=True), options, ["origin", "sequence"])
    servers.close()

    assert base == {A: 100, B: 0}
    numbers = [*((str(A), n) for n in range(101, 111)), *((str(B), n) for n in range(1, 5))]
    assert sorted((row["origin"], row["sequence"]) for row in found) == numbers


def test_a_range_snapshot_is_read_where_no_node_has_all_and_is_a_loss_for_strict_readers() -> None:
    left = rest(A, 1, 20, [record(7), record(20)])
    getting = JournalNode([left, *split(A, 21, 30, 5)])
    having = JournalNode(split(A, 11, 30, 5), base={A: 10})
    options = asked(getting, having)
    servers = Servers(options)
    parts = servers.plan({}, {A: 30}, strict=False)
    later = servers.plan({A: 10}, {A: 30}, strict=True)
    all_of_it = servers.plan({}, {A: 30}, strict=True)
    servers.close()

    assert sorted(row["sequence"] for row in rows(parts, options, ["sequence"])) == [7, *range(11, 31)]
    assert sorted(row["sequence"] for row in rows(later, options, ["sequence"])) == list(range(11, 31))
    with pytest.raises(DataLoss, match=f"{A} from 1 to 10"):
        rows(all_of_it, options, ["sequence"])


def test_a_stream_from_the_earliest_begins_behind_a_rest_where_no_node_has_all() -> None:
    left = rest(A, 1, 20, [record(7), record(20)])
    nodes = [JournalNode([left, *split(A, 21, 30, 5)]), JournalNode([left, *split(A, 21, 40, 5)])]
    options = asked(*nodes)
    servers = Servers(options)

    base = servers.base()
    found = rows(servers.plan(base, servers.available(), strict=True), options, ["sequence"])
    servers.close()

    assert base == {A: 20}
    assert sorted(row["sequence"] for row in found) == list(range(21, 41))


def test_a_stream_from_the_earliest_reads_a_range_of_which_another_node_got_a_rest() -> None:
    getting = JournalNode([rest(A, 1, 20, [record(7), record(20)]), *split(A, 21, 30, 5)])
    options = asked(getting, JournalNode(split(A, 1, 30, 5)))
    servers = Servers(options)

    base = servers.base()
    found = rows(servers.plan(base, servers.available(), strict=True), options, ["sequence"])
    servers.close()

    assert base == {A: 0}
    assert sorted(row["sequence"] for row in found) == list(range(1, 31))


def test_a_stream_of_fanouts_from_the_earliest_has_what_a_rest_kept_of_them() -> None:
    node = JournalNode([rest(A, 1, 20, [record(7, b"", "/fanout/f"), record(20)]), *split(A, 21, 30, 5, "/fanout/f")])
    options = asked(node, subscribe="/fanout/f")
    servers = Servers(options)

    found = rows(servers.plan(servers.base(), servers.available(), strict=True), options, ["sequence"])
    servers.close()

    assert sorted(row["sequence"] for row in found) == [7, *range(21, 31)]


def test_what_is_missing_of_fanouts_is_a_loss_although_a_rest_accounts_for_other_records() -> None:
    node = JournalNode(
        [rest(A, 1, 20, [record(7, b"", "/fanout/f"), record(20)]), *split(A, 21, 30, 5), *split(A, 41, 50, 5)]
    )
    options = asked(node, subscribe="/fanout/f")
    servers = Servers(options)
    parts = servers.plan({}, {A: 50}, strict=True)
    servers.close()

    with pytest.raises(DataLoss, match=f"to be read: {A} from 31 to 40\\."):
        rows(parts, options, ["sequence"])


def test_partitions_of_live_nodes_are_as_many_as_was_asked_for() -> None:
    node = JournalNode([*split(A, 1, 100, 5), *split(B, 1, 10, 5)])
    options = asked(node, minPartitions="4")
    servers = Servers(options)
    parts = servers.plan({}, servers.available(), strict=True)
    servers.close()

    assert len(parts) == 4
    found = rows(parts, options, ["origin", "sequence"])
    numbers = [*((str(A), n) for n in range(1, 101)), *((str(B), n) for n in range(1, 11))]
    assert sorted((row["origin"], row["sequence"]) for row in found) == numbers


def test_a_node_that_is_behind_by_other_records_takes_over_from_one_that_goes_away() -> None:
    """While messages pass, somebody always is."""
    ahead = JournalNode([*split(A, 1, 30, 5), *split(B, 1, 5, 5)])
    behind = JournalNode([*split(A, 1, 30, 5), *split(B, 1, 4, 4)])
    options = asked(ahead, behind)
    servers = Servers(options)
    parts = servers.plan({}, {A: 30, B: 4}, strict=True)
    servers.close()
    ahead.close()

    assert len(rows(parts, options, ["sequence"])) == 34


def test_what_a_node_gave_up_comes_from_one_that_is_behind() -> None:
    gave_up = JournalNode([*split(A, 21, 30, 5), *split(B, 1, 5, 5)])
    behind = JournalNode([*split(A, 1, 30, 5), *split(B, 1, 4, 4)])

    assert read(asked(gave_up, behind)) == sorted([*range(1, 31), *range(1, 6)])


def test_live_nodes_do_not_report_positions() -> None:
    """What they send begins where the records begin that were asked for."""
    options = asked(JournalNode(split(A, 1, 30, 5)), view="log")
    servers = Servers(options)
    parts = servers.plan_nodes()
    servers.close()

    assert {row["position"] for row in rows(parts, options, ["position"])} == {None}
