"""A peer whose responses are wrong counts as a peer that does not respond."""

import pytest
from trio.testing import MockClock

from qmq.admin.facts.conditions import urgency_key
from qmq.broker.messages.dedup import KEY_BYTES
from qmq.mesh.peers.calls import INVALID
from qmq.mesh.peers.dedup_query import DedupCall
from qmq.replication.protocol.frames import PeerRequest
from tests.node.mesh_rig import MeshRig

from .test_control_mesh import ask

WRONG = (
    b"[" * 100_000,
    b"null",
    b"[1]",
    b"{}",
    b'{"running":1,"origin":""}',
    b'{"messages":"x","reason":5,"num_messages":"1","destinations":[5],"conditions":[{}],"connections":null,"links":null,"rows":[]}',
    b'{"num_messages":null,"destinations":[{}],"next":5,"conditions":[{"severity":"error","since_us":"x"}]}',
)
REQUESTS = ("count-msgs/queue/q", "list/queue", "conditions", "connections", "links", "purge/queue/q")


@pytest.mark.parametrize("wrong", WRONG)
async def test_peer_with_a_wrong_answer_is_missing(autojump_clock: MockClock, wrong: bytes) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await mesh.connect("a")

        async def answer(request: PeerRequest) -> bytes:
            return wrong

        mesh.nodes["b"].peer_rpc._answer = answer
        for request in REQUESTS:
            facts = await ask(client, f"/control/{request}", scope="mesh")
            assert (request, facts.get("nodes-missing")) == (request, "b")

        assert (
            await mesh.nodes["a"].mesh_parts.quarantine_restore.anywhere(mesh.nodes["a"].engine.path.durable_vector())
            is None
        )
        hearing, agrees_in = await mesh.nodes["a"].mesh_parts.decommission._opinions("c")
        assert (hearing, list(agrees_in)) == ([], ["a"])


@pytest.mark.parametrize(
    "wrong",
    [
        b"[" * 100_000,
        b'[[1,"b",1,1]]',
        b"[[Infinity,1,1,1]]",
        b"[[-1,[],1,1]]",
        b'[[0,"b",1,1e9]]',
        b'[[0,"b",-1,1]]',
        b'[[-1,"b",1,1]]',
    ],
)
def test_wrong_answer_about_dedup_ids_is_invalid(wrong: bytes) -> None:
    call = DedupCall([bytes(KEY_BYTES).hex()], "a", 1)

    with pytest.raises(INVALID):
        call.check(call.decode_reply(wrong))


def test_unknown_severity_is_listed_as_an_error() -> None:
    row = {"since_us": 1, "node": "a", "code": "x", "message": "y"}

    assert urgency_key({**row, "severity": "dire"}) == urgency_key({**row, "severity": "error"})
