"""A node is retired: the others go on without it, one of them has its messages, and it does not come back."""

import json
from dataclasses import replace
from typing import cast

import msgpack
import pytest
import trio
from trio.testing import MockClock

from qmq.admin.facts.node_status import RetiredNode
from qmq.admin.facts.status import membership_of, peers_of
from qmq.broker.consumers.outcome import Outcome
from qmq.errors import StorageError
from qmq.model.members import Retirement
from qmq.node.node import Node
from qmq.replication.protocol.frames import PeerRequest
from qmq.storage.catalog.facts import RETIRED
from qmq.storage.format.record import RecordKind
from tests.mesh.membership.test_members import all_count, codes
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send, subscribe
from tests.support.conditions import present


async def retire(client: Client, name: str, **headers: str) -> dict[str, object]:
    """What the node says to an operator's word."""
    await client.send(send(f"/control/retire/{name}", "", f"retire-{name}", **headers))
    frame = await client.any()
    return dict(frame.head.headers)


def knows_retired(node: Node, name: str, adopter: str) -> bool:
    return RetiredNode(name, adopter) in membership_of(node.membership).retired


async def test_the_others_go_on_without_a_retired_node(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c")
        client = await mesh.connect("a")

        said = await retire(client, "c")

        assert (said["retired"], said["adopter"]) == ("c", "a")
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        await eventually(lambda: knows_retired(b, "c", "a"))
        for node, peer in ((a, "b"), (b, "a")):
            assert node.membership.peers == [peer]
            assert list(node.engine.checkpoints.members) == [peer]
            assert node.membership.is_majority({"a", "b"})
        assert a.settings_parts.rules.level("/queue/jobs") == 0  # two nodes: the default asks for one disk
        await eventually(lambda: [row.name for row in peers_of(a.mesh, a.membership)] == ["b"])


async def test_what_was_wrong_with_the_disk_of_a_retired_node_is_over(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c", wipe=True)
        mesh.cut("b", "c")
        await mesh.start("c")
        a = mesh.nodes["a"]
        await eventually(lambda: [one["code"] for one in present(a)] == ["new-disk"])

        await mesh.stop("c")
        await retire(await mesh.connect("a"), "c")

        await eventually(lambda: present(a) == [])


async def test_what_was_wrong_with_the_links_of_a_retired_node_is_over(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c")
        await mesh.start("c", mesh.peers.replace({"secret": "another secret of the rig"}))
        a = mesh.nodes["a"]
        await eventually(lambda: "bad-proof" in [one["code"] for one in present(a)])

        await mesh.stop("c")
        await retire(await mesh.connect("a"), "c")

        await eventually(lambda: present(a) == [])


async def test_a_node_is_retired_although_one_of_the_others_never_agrees(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c", "d").run() as mesh:
        await eventually(lambda: all_count(mesh))

        async def answer(request: PeerRequest) -> bytes:
            return b'{"hears": false, "agrees_in": 1000000}'

        mesh.nodes["c"].peer_rpc._answer = answer
        await mesh.stop("d")

        said = await retire(await mesh.connect("a"), "d")

        assert said["retired"] == "d"


async def test_a_retirement_outlives_restarts_and_the_journal(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c")
        await retire(await mesh.connect("a"), "c")
        await eventually(lambda: knows_retired(mesh.nodes["b"], "c", "a"))

        for name in "ab":
            await mesh.stop(name)
        for name in "ab":
            await mesh.start(name)
        await mesh.until_linked()

        assert all(knows_retired(node, "c", "a") for node in mesh.nodes.values())


async def test_what_was_heard_of_without_a_record_is_remembered_too(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        for name in "bc":
            await mesh.stop(name)
        a = mesh.nodes["a"]
        gone = Retirement(node="c", adopter="b", sealed={})
        a.host.follower.membership_received("b", replace(a.membership.standing, retired=(gone,)))
        await eventually(lambda: RETIRED + "c" in a.store.catalog.facts())

        await mesh.stop("a")
        a = await mesh.start("a")

        assert knows_retired(a, "c", "b")


async def test_a_node_that_was_away_hears_of_it_when_it_is_back(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c", "d").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("d")
        await mesh.stop("c")
        await retire(await mesh.connect("a"), "d")

        c = await mesh.start("c")
        await mesh.until_linked()

        await eventually(lambda: knows_retired(c, "d", "a"))


async def test_a_retired_node_is_refused_when_it_comes_back_stops_and_does_not_start_again(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c")
        await retire(await mesh.connect("a"), "c")
        await eventually(lambda: knows_retired(mesh.nodes["b"], "c", "a"))

        c = await mesh.start("c")
        with trio.fail_after(30):
            await c.ended.wait()

        assert {"refused-retired-node", "retired"} <= set(codes(c))
        assert "definitions-behind" not in codes(c)
        assert c.addresses == {}
        (event,) = (one for one in mesh.nodes["a"].conditions.past() if one.code == "retired-node")
        assert event.message.startswith("link with c: c was retired")
        assert event.advice.startswith("Stop the retired node.")
        del mesh.nodes["c"]
        with pytest.raises(StorageError, match="was retired"):
            await mesh.start("c")


async def test_one_peer_alone_cannot_send_a_node_away(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        c = mesh.nodes["c"]

        c.host.follower.refused_as_retired("a")
        c.host.follower.refused_as_retired("a")
        await trio.sleep(5)

        assert not c.ended.is_set()
        assert codes(c) == []


async def test_the_word_of_one_peer_ends_no_running_node(autojump_clock: MockClock) -> None:
    """As a node says it that was broken into."""
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        a, b, c = (mesh.nodes[name] for name in "abc")
        lie = (Retirement(node="b", adopter="a"), Retirement(node="c", adopter="a"))

        for victim in (b, c):
            victim.host.follower.membership_received("a", replace(a.membership.standing, retired=lie))
        await trio.sleep(60)

        assert not b.ended.is_set()
        assert not c.ended.is_set()
        assert b.membership.members == c.membership.members == {"a", "b", "c"}
        assert "retirement-unconfirmed" in codes(b)
        b.host.follower.membership_received("a", a.membership.standing)
        assert present(b) == []


async def test_a_record_of_one_peer_ends_no_running_node(autojump_clock: MockClock) -> None:
    """One that a node wrote which was broken into reaches every journal."""
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        a, c = mesh.nodes["a"], mesh.nodes["c"]
        now_us = a.environment.now_us()
        out = Outcome(now_us=now_us)
        body = msgpack.packb({"node": "c", "adopter": "a", "sealed": {}})
        a.broker.note_fact(cast("RecordKind", 9), body, now_us, out)
        a.engine.path.submit(out)
        await a.engine.path.flushed()

        await eventually(lambda: c.engine.path.durable_vector()[a.origin] == a.engine.path.durable_vector()[a.origin])
        await trio.sleep(10)

        assert not c.ended.is_set()
        assert c.membership.members == {"a", "b", "c"}


async def test_the_word_of_one_peer_leaves_no_retired_node_without_an_adopter(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        await mesh.stop("c")
        await b.mesh_parts.decommission.retire("c", force=False)
        await eventually(lambda: knows_retired(a, "c", "b"))

        lie = Retirement(node="c", adopter="aa")  # No node has that name.
        b.host.follower.membership_received("a", replace(a.membership.standing, retired=(lie,)))
        await trio.sleep(60)

        assert b.membership.adopted_by("b") == ["c"]
        assert knows_retired(a, "c", "b")


async def test_the_word_of_one_peer_does_not_retire_a_node_that_restarts(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        await mesh.stop("c")
        b.host.follower.membership_received(
            "a", replace(a.membership.standing, retired=(Retirement(node="c", adopter="a"),))
        )
        await trio.sleep(2)

        c = await mesh.start("c")
        await mesh.until_linked()
        await trio.sleep(60)

        assert not c.ended.is_set()
        assert b.membership.members == {"a", "b", "c"}


async def test_a_node_that_is_heard_is_retired_only_by_force_and_then_stops(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        mesh.cut("a", "c")
        await eventually(lambda: mesh.link("a", "c") == "down")
        client = await mesh.connect("a", on_error="keep-open")

        said = await retire(client, "c")
        assert said["error-code"] == "still-reachable"
        assert "b can reach c" in str(said["message"])
        assert mesh.nodes["a"].membership.peers == ["b", "c"]

        said = await retire(await mesh.connect("a"), "c", force="true")
        assert said["error-code"] == "not-agreed"
        assert "force it at b as well" in str(said["message"])
        await trio.sleep(30)
        assert not mesh.nodes["c"].ended.is_set()

        assert (await retire(await mesh.connect("b"), "c", force="true"))["retired"] == "c"
        mesh.heal("a", "c")
        with trio.fail_after(30):
            await mesh.nodes.pop("c").ended.wait()


@pytest.mark.parametrize(("name", "code"), [("a", "bad-node"), ("nobody", "bad-node")])
async def test_what_cannot_be_retired_is_refused(name: str, code: str, autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await mesh.connect("a", on_error="keep-open")

        assert (await retire(client, name))["error-code"] == code


async def test_a_node_is_retired_once(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c")
        client = await mesh.connect("a", on_error="keep-open")
        await retire(client, "c")

        assert (await retire(client, "c"))["error-code"] == "already-retired"


async def test_a_learner_counts_when_the_one_that_it_had_not_met_is_retired(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c", wipe=True)
        await mesh.stop("b")
        c = await mesh.start("c")
        await eventually(lambda: mesh.link("c", "a") == mesh.link("a", "c") == "caught-up")
        assert not c.membership.may_vote

        await retire(await mesh.connect("a"), "b")

        await eventually(lambda: c.membership.may_vote and mesh.nodes["a"].membership.counts("c"))


async def test_a_minority_retires_no_node(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c", "d").run() as mesh:
        await eventually(lambda: all_count(mesh))
        for name in "bcd":
            mesh.cut("a", name)
        await eventually(lambda: not mesh.nodes["a"].mesh_parts.decommission.linked())
        client = await mesh.connect("a", on_error="keep-open")

        assert (await retire(client, "d"))["error-code"] == "no-majority"


async def test_no_node_is_retired_while_the_files_differ(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        assert await mesh.reload("b", mesh.peers_file("a", "b", "c", "d", version=2))
        await mesh.stop("c")
        await eventually(lambda: len(mesh.nodes["a"].membership.lists) == 2)
        client = await mesh.connect("a", on_error="keep-open")

        assert (await retire(client, "c"))["error-code"] == "change-under-way"


async def test_the_file_may_leave_a_retired_node_out_and_its_records_stay_welcome(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        client = await mesh.connect("c")
        await client.send(send("/fanout/log", "old news", "r1"))
        await client.receipt()
        await mesh.stop("c")
        await retire(await mesh.connect("a"), "c")
        await eventually(lambda: knows_retired(mesh.nodes["b"], "c", "a"))

        smaller = mesh.peers_file("a", "b", version=2)
        for name in "ab":
            assert await mesh.reload(name, smaller)
        await mesh.stop("b", wipe=True)
        b = await mesh.start("b", smaller)
        await mesh.until_linked()

        # All of it came back, that of the retired node too, though b's file never named it.
        await eventually(lambda: b.store.fanout_info("/fanout/log").records == 1)
        assert await mesh.reload("a", mesh.peers_file("a", "b", "c", version=3)) is False


async def test_two_retirements_at_the_same_time_come_to_one_adopter(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await mesh.stop("c")
        a, b = mesh.nodes["a"], mesh.nodes["b"]

        a.mesh_parts.members.retired(Retirement(node="c", adopter="a"))
        b.mesh_parts.members.retired(Retirement(node="c", adopter="b"))

        await eventually(lambda: knows_retired(a, "c", "a") and knows_retired(b, "c", "a"))


async def test_the_answer_says_how_far_the_retired_nodes_records_are_known(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        origin = mesh.nodes["c"].origin
        last = mesh.nodes["a"].engine.path.durable_vector()[origin]
        await mesh.stop("c")

        said = await retire(await mesh.connect("a"), "c")

        assert json.loads(str(said["sealed"])) == {str(origin): last}
        assert json.loads(str(said["still-on-the-way"])) == {}


async def lost_majority(mesh: MeshRig, *bodies: str) -> Client:
    """Nodes b and c are gone for ever, with messages that a has too; a client of a."""
    await eventually(lambda: all_count(mesh))
    sender = await mesh.connect("b")
    for number, body in enumerate(bodies):
        await sender.send(send("/queue/jobs", body, f"r{number}"))
        await sender.receipt()
    a = mesh.nodes["a"].broker.received
    await eventually(lambda: all(node.engine.path.durable_vector() == a() for node in mesh.nodes.values()))
    for name in "bc":
        await mesh.kill(name)
        del mesh.nodes[name]
    await eventually(lambda: not mesh.nodes["a"].mesh_parts.decommission.linked())
    return await mesh.connect("a")


async def test_a_lone_survivor_says_how_to_go_on_when_the_majority_is_gone(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await lost_majority(mesh)

        said = await retire(client, "b", force="true")

        assert said["error-code"] == "no-majority"
        assert "qmq mesh retire b c --majority-lost" in str(said["message"])


async def test_a_lone_survivor_serves_everything_once_the_lost_majority_is_retired(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await lost_majority(mesh, "one", "two")
        await trio.sleep(30)
        assert mesh.nodes["a"].broker.queues.held

        said = await retire(client, "b,c", **{"majority-lost": "true"})

        assert (said["retired"], said["adopter"]) == ("b,c", "a")
        worker = await mesh.connect("a")
        await worker.send(subscribe("/queue/jobs", ack="client-individual"))
        await worker.receipt()
        bodies = []
        for _ in range(2):
            message = await worker.next("MESSAGE")
            bodies.append(message.body.decode())
            await worker.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:s\n\n")
            await worker.receipt()
        assert sorted(bodies) == ["one", "two"]
        assert await mesh.reload("a", mesh.peers_file("a", version=3))
        await mesh.stop("a")
        a = await mesh.start("a", mesh.peers_file("a", version=3))
        await eventually(lambda: not a.broker.queues.held)


async def test_a_node_that_was_taken_for_lost_is_refused_when_it_comes_back(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await lost_majority(mesh)
        await retire(client, "b,c", **{"majority-lost": "true"})

        b = await mesh.start("b")

        await eventually(lambda: "refused-retired-node" in codes(b) and "retired-node" in codes(mesh.nodes["a"]))
        await trio.sleep(30)
        assert b.broker.queues.held
        assert not mesh.nodes["a"].mesh_parts.decommission.linked()


async def test_two_survivors_of_five_go_on_once_the_lost_majority_is_retired(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c", "d", "e").run() as mesh:
        await eventually(lambda: all_count(mesh))
        for name in "cde":
            await mesh.kill(name)
            del mesh.nodes[name]
        await eventually(lambda: mesh.nodes["a"].mesh_parts.decommission.linked() == {"b"})

        said = await retire(await mesh.connect("a"), "c,d,e", **{"majority-lost": "true"})

        assert said["retired"] == "c,d,e"
        await eventually(lambda: all(knows_retired(mesh.nodes["b"], name, "a") for name in "cde"))
        await eventually(lambda: not any(node.broker.queues.held for node in mesh.nodes.values()))


async def test_the_word_that_a_majority_is_lost_is_not_taken_while_that_is_not_so(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:

        async def word(names: str) -> object:
            said = await retire(await mesh.connect("a"), names, **{"majority-lost": "true"})
            return said.get("error-code") or said["retired"]

        await eventually(lambda: all_count(mesh))
        assert await word("b,c") == "still-reachable"

        await mesh.stop("c")
        assert await word("c") == "majority-left"
        await mesh.stop("b")
        assert await word("b") == "not-all-named"
        assert await word("a,b") == "bad-node"

        assert await word("b,c") == "b,c"
        assert await word("b,c") == "already-retired"


async def test_the_word_that_a_majority_is_lost_is_kept_whole_or_not_at_all(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await retire(await lost_majority(mesh), "b,c", **{"majority-lost": "true"})

        await mesh.kill("a")
        a = await mesh.start("a")

        assert a.membership.members == {"a"}
        await eventually(lambda: not a.broker.queues.held)


async def test_the_list_of_a_node_that_left_counts_no_more(autojump_clock: MockClock) -> None:
    """It hears that it was retired, and tells so, before it stops."""
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: all_count(mesh))
        await retire(await mesh.connect("b", on_error="keep-open"), "c", force="true")
        await retire(await mesh.connect("a"), "c", force="true")
        await eventually(lambda: knows_retired(mesh.nodes["b"], "c", "a"))
        await trio.sleep(10)

        larger = mesh.peers_file("a", "b", "c", "d", version=2)
        for name in "ab":
            assert await mesh.reload(name, larger)
        await mesh.start("d", larger)
        await trio.sleep(30)

        assert [membership_of(mesh.nodes[name].membership).lists for name in "abd"] == [1, 1, 1]
        assert all(mesh.nodes[name].membership.is_majority({"a", "d"}) for name in "abd")
