"""Definitions at a node that is behind: a change that it confirms counts, and a change of others does not wait."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.definitions.definition import Definition, Key
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.dots import covers
from qmq.node.node import Node
from qmq.replication.protocol.frames import PeerRequest
from qmq.settings.definitions.sync import BEHIND, LEVEL_SECONDS, DefinitionSync
from tests.admin.test_connections import ask
from tests.node.mesh_rig import MeshRig, host_of, isolate, rejoin
from tests.node.rig import eventually, send
from tests.settings.definitions.test_definitions_mesh import conditions, until_alike
from tests.settings.definitions.test_users_mesh import HASH

Q = "/queue/q"
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "long"}]}
SLOW_BYTES = 50_000
"""A second, over a link that is behind."""


def value(node: Node, key: Key) -> Mapping[str, Any] | None:
    found = node.settings_parts.definitions.table.get(key)
    return None if found is None else found.value


BOTH: list[tuple[Key, dict[str, Any], dict[str, Any] | None]] = [
    (Key("pause-delivery", Q), {}, None),
    (Key("policy", Q), {"delivery_limit": 5}, {"delivery_limit": 50}),
    (Key("user", "ann"), {"groups": ["administrator"], "password_hash": HASH}, None),
    (
        Key("permission", "user:ann deny send /queue/q"),
        {"user": "ann", "deny": ["send"], "destinations": [Q]},
        None,
    ),
    (Key("limit", "user:ann"), {"connections_max": 3}, {"connections_max": 4}),
    (Key("queue", Q), {"max_messages": 5}, None),
    (Key("exchange", "e"), {"type": "direct"}, None),
    (Key("binding", "/exchange/amq.topic /queue/q k"), {"source": "/exchange/amq.topic", "queue": Q, "key": "k"}, None),
    (Key("vhost", "shop"), {}, None),
    (Key("schema", "s"), SCHEMA, {**SCHEMA, "doc": "other"}),
]


@pytest.mark.parametrize("is_noticed", [True, False], ids=["links-down", "cut-unnoticed"])
@pytest.mark.parametrize(("key", "first", "other"), BOTH, ids=[key.kind for key, *_ in BOTH])
async def test_a_change_that_a_stale_node_takes_for_the_present_state_wins_over_an_earlier_one(
    autojump_clock: MockClock, key: Key, first: dict[str, Any], other: dict[str, Any] | None, is_noticed: bool
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a, c = mesh.nodes["a"].settings_parts.definitions, mesh.nodes["c"].settings_parts.definitions
        await a.change({key: first})
        await until_alike(mesh)
        first_there = value(mesh.nodes["a"], key)
        isolate(mesh, "c")
        if is_noticed:
            await eventually(lambda: not mesh.nodes["c"].mesh.followers())
        await a.change({key: other})
        await trio.sleep(2)

        report = await c.change({key: first})
        rejoin(mesh, "c")
        await mesh.until_linked()
        await until_alike(mesh)

        assert report.changed == 0
        assert [value(node, key) for node in mesh.nodes.values()] == [first_there] * 3


async def test_a_resume_at_a_node_that_has_not_heard_of_the_pause_wins_over_it(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        isolate(mesh, "c")
        assert (await ask(await mesh.connect("a"), f"pause{Q}"))["changed"] == 1
        await trio.sleep(2)

        facts = await ask(await mesh.connect("c"), f"resume{Q}")
        rejoin(mesh, "c")
        await mesh.until_linked()
        await until_alike(mesh)

        assert (facts["delivery"], facts["acceptance"], facts["changed"]) == (False, False, 0)
        assert [node.settings_parts.paused_queues.parts(Q) for node in mesh.nodes.values()] == ["", "", ""]


async def test_what_all_members_know_of_is_not_written_again(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        for key, first, _ in BOTH:
            await mesh.nodes["a"].settings_parts.definitions.change({key: first})
        await until_alike(mesh)
        before = mesh.nodes["c"].engine.path.durable_vector()

        for key, first, _ in BOTH:
            assert (await mesh.nodes["c"].settings_parts.definitions.change({key: first})).changed == 0

        assert mesh.nodes["c"].engine.path.durable_vector() == before


async def fall_behind(mesh: MeshRig, name: str, *, is_noticed: bool) -> None:
    """`name` is away, or only too slow, for so many bytes of messages that its journal needs a minute from now."""
    isolate(mesh, name)
    if is_noticed:
        await eventually(lambda: not mesh.nodes[name].mesh.followers())
    client = await mesh.connect("a")
    rng = random.Random("bodies that nothing compresses")
    for number in range(300):
        await client.send(send("/fanout/f", rng.randbytes(5_000).hex(), str(number)))
    for _ in range(300):
        await client.receipt()
    for other in mesh.names:
        if other != name:
            here, there = host_of(mesh.names.index(other)), host_of(mesh.names.index(name))
            mesh.fabric.slow_down(here, there, SLOW_BYTES, 1500)
    rejoin(mesh, name)
    await eventually(lambda: len(mesh.nodes[name].mesh.followers()) == 2)


def is_behind(mesh: MeshRig, name: str) -> bool:
    return not covers(mesh.nodes[name].engine.path.received_vector(), mesh.nodes["a"].engine.path.durable_vector())


@pytest.mark.parametrize("is_noticed", [True, False], ids=["new-link", "old-link"])
async def test_a_change_does_not_wait_behind_the_messages_of_the_journal(
    autojump_clock: MockClock, is_noticed: bool
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a, c = mesh.nodes["a"], mesh.nodes["c"]
        await fall_behind(mesh, "c", is_noticed=is_noticed)

        denial = Key("permission", "user:ann deny send /queue/q")
        await a.settings_parts.definitions.change({denial: {"user": "ann", "deny": ["send"], "destinations": [Q]}})
        began = trio.current_time()
        await eventually(lambda: value(c, denial) is not None)

        assert trio.current_time() - began < 6 * LEVEL_SECONDS
        assert is_behind(mesh, "c")
        assert BEHIND not in conditions(c)


async def test_a_change_that_only_a_linked_peer_knows_of_is_asked_for_before_the_same_is_confirmed(
    autojump_clock: MockClock,
) -> None:
    (policy, first, other), (queue, same, _) = BOTH[1], BOTH[5]
    async with MeshRig("a", "b", "c").run() as mesh:
        a, c = mesh.nodes["a"], mesh.nodes["c"]
        await a.settings_parts.definitions.change({policy: first, queue: same})
        await until_alike(mesh)
        there = value(a, policy)
        await fall_behind(mesh, "c", is_noticed=True)
        await a.settings_parts.definitions.change({policy: other})
        assert is_behind(mesh, "c") and value(c, policy) == there != value(a, policy)

        await c.settings_parts.definitions.change({policy: first, queue: same})

        assert value(c, policy) == there
        await eventually(lambda: value(a, policy) == there)


@pytest.mark.parametrize(
    ("answer", "is_known"),
    [
        (b'{"rows":[],"next":null,"is_same":true,"stable":{}}', True),
        (b'{"later":true}', True),
        # Not valid, so it is none.
        *[(answer, False) for answer in (b'{"later":null}', b'{"later":0}', b"[]", b"", b"x")],
    ],
)
async def test_an_answer_that_does_not_say_that_nothing_is_later_is_followed_by_a_request_for_all(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, answer: bytes, is_known: bool
) -> None:
    """Such as that of an older node, which gives a page."""
    asked: list[str] = []
    pull = DefinitionSync._pull

    async def pulled(sync: DefinitionSync, peer: str) -> list[Definition] | None:
        asked.append(peer)
        return await pull(sync, peer)

    async def old(rpc: PeerRpc, request: PeerRequest) -> bytes:
        return answer if b'"versions"' in request.body else await answer_of(rpc, request)

    answer_of = PeerRpc._answer
    async with MeshRig("a", "b", "c").run() as mesh:
        await mesh.nodes["a"].settings_parts.definitions.change({Key("queue", Q): {}})
        await until_alike(mesh)
        monkeypatch.setattr(DefinitionSync, "_pull", pulled)
        assert await mesh.nodes["c"].settings_parts.sync.knows_latest([Key("queue", Q)])
        assert asked == []

        monkeypatch.setattr(PeerRpc, "_answer", old)
        assert await mesh.nodes["c"].settings_parts.sync.knows_latest([Key("queue", Q)]) is is_known

        assert sorted(asked) == (["a", "b"] if is_known else [])


async def test_a_node_that_is_behind_and_gets_no_definitions_has_a_condition(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(sync: DefinitionSync, peer: str) -> None:
        await trio.sleep(5)

    async with MeshRig("a", "b", "c").run() as mesh:
        c = mesh.nodes["c"]
        pull = DefinitionSync._pull
        monkeypatch.setattr(DefinitionSync, "_pull", never)
        await fall_behind(mesh, "c", is_noticed=True)

        await eventually(lambda: BEHIND in conditions(c))
        monkeypatch.setattr(DefinitionSync, "_pull", pull)
        await eventually(lambda: BEHIND not in conditions(c))

        assert is_behind(mesh, "c")
