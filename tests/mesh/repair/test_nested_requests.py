"""Arrays inside each other, as deep as msgpack allows: deeper than Python can print them. They end no node."""

from collections.abc import Callable
from typing import Any, cast

import msgpack
import pytest
from trio.testing import MockClock

from qmq.errors import CorruptLog, Refused
from qmq.mesh.peers.calls import PeerCall
from qmq.mesh.peers.rpc import PeerRpc, read_reply
from qmq.mesh.repair.requests import DurablesCall
from qmq.replication.protocol.frames import PeerRequest
from qmq.storage.catalog.incarnations import unpack_seals
from qmq.storage.format.delete_record import unpack_delete
from qmq.storage.format.lost_record import unpack_lost
from qmq.storage.format.record import RecordKind
from qmq.storage.format.term_record import unpack_term
from tests.node.rig import Rig

DEPTH = 1015

NESTED = b"\x91" * DEPTH + b"\xc0"


class Peer:
    """A node whose peer gives one response to everything."""

    def __init__(self, response: bytes) -> None:
        self.peer_rpc = cast(PeerRpc, self)
        self._response = response

    async def ask_one(self, peer: str, call: PeerCall[Any]) -> Any:
        return read_reply(peer, call, self._response)


async def test_a_nested_response_about_durable_subscriptions_is_none(autojump_clock: MockClock) -> None:
    peer = Peer(b"\x91\x91\x92" + NESTED + msgpack.packb(b""))

    assert await peer.ask_one("b", DurablesCall(None)) is None


@pytest.mark.parametrize(
    "request_",
    [
        b"\x96" + b"".join(map(msgpack.packb, ("rest", "b", 1, 0, 1))) + NESTED,
        b"\x92" + msgpack.packb("durables") + b"\x93" + NESTED * 3,
        b"\x92" + msgpack.packb("settled") + NESTED,
        b"\x92" + msgpack.packb("seals") + b"\x92" + NESTED * 2,
    ],
)
async def test_a_nested_repair_request_is_refused(autojump_clock: MockClock, request_: bytes) -> None:
    rig = Rig()
    async with rig.run():
        with pytest.raises(Refused):
            await rig.alive.peer_rpc._answer(PeerRequest("repair", request_))


@pytest.mark.parametrize("name", [NESTED, b"\x91\xc0"], ids=["nested", "flat"])
@pytest.mark.parametrize(
    ("unpack", "before", "behind"),
    [
        (unpack_delete, b"\x81" + msgpack.packb("before") + b"\x91\x93", b"\x01\x01"),
        (unpack_lost, b"\x94", b"\x01\x01\x01"),
        (lambda body: unpack_term(RecordKind.VOTE, body), b"\x93", b"\x01\xa1a"),
        (unpack_seals, b"\x91\x95", b"\x01\x01\xc3\xa1a"),
    ],
)
def test_an_array_where_a_record_names_a_node_is_damage(
    unpack: Callable[[bytes], Any], before: bytes, name: bytes, behind: bytes
) -> None:
    with pytest.raises(CorruptLog):
        unpack(before + name + behind)
