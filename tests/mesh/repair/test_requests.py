"""Responses of peers to a node that repairs itself: what is malformed counts as no response."""

import msgpack
import pytest
from trio.testing import MockClock

from qmq.mesh.repair.requests import ask_snapshot
from qmq.model.dots import Origin
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.record import RecordKind
from tests.mesh.repair.test_nested_requests import Peer

RECORD = [1, 1, RecordKind.PUBLISH << 56, "/fanout/x", b"", b""]


@pytest.mark.parametrize("wrong", [{0: None}, {0: 1.0}, {1: "1"}, {1: -1}, {2: "x"}, {3: 5}, {4: None}, {5: 5}])
async def test_a_snapshot_with_an_invalid_record_is_no_response(
    wrong: dict[int, object], autojump_clock: MockClock
) -> None:
    records = [RECORD, [wrong.get(at, value) for at, value in enumerate(RECORD)]]
    right, response = [msgpack.packb((1, 0, 0, [msgpack.packb(record)], [])) for record in records]
    missing = MissingRange(Origin("b", 1), 0, 1)

    assert await ask_snapshot(Peer(right), "b", missing) is not None
    assert await ask_snapshot(Peer(response), "b", missing) is None
