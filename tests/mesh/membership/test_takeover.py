"""The queue messages of a silent node are served by another, and are its own again when it is back."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.copy_budget import copies_left
from qmq.broker.messages.message import Message
from qmq.broker.messages.rules import DEAD_LETTERS
from qmq.broker.queues.handoff import DEAD_LETTERS_WAIT_US
from qmq.broker.takeover.campaigns import Campaign
from qmq.broker.takeover.elections import Elections
from qmq.broker.takeover.leases import Beat, Bid, Term
from qmq.config import DestinationPolicy, DestinationSettings, MeshSettings
from qmq.errors import DiskFull, Refused
from qmq.mesh.membership.takeover import HELD, HELD_SECONDS, Takeover
from qmq.model.dots import Dot, Origin
from qmq.node.node import Node
from qmq.replication.links.outbox import LinkOutbox, encode_send
from qmq.replication.protocol.frames import Holds, Release, Vote
from qmq.storage.catalog.facts import UNCHECKED
from qmq.storage.format.term_record import TermNote
from tests.node.mesh_rig import MeshRig, host_of, isolate, rejoin
from tests.node.rig import Client, eventually, nothing_more, send, subscribe
from tests.support.conditions import present, reported
from tests.support.depths import depths

JOBS = "/queue/jobs"
AFTER = 10.0
SPARE = 5.0
"""After the suspicion, until everything that waits is handed out."""
QUIET_SECONDS = 25.0


def three(**settings: Any) -> MeshRig:
    return MeshRig("a", "b", "c", **settings)


async def publish(rig: MeshRig, name: str, *bodies: str, **headers: str) -> Client:
    client = await rig.connect(name)
    await client.send(*(send(JOBS, body, **headers) for body in bodies[:-1]), send(JOBS, bodies[-1], "r", **headers))
    await client.receipt()
    return client


async def consumer(rig: MeshRig, name: str, **headers: str) -> Client:
    client = await rig.connect(name)
    await client.send(subscribe(JOBS, ack="client-individual", **headers))
    await client.receipt()
    return client


DROPPED: Final = DestinationSettings(policies=(DestinationPolicy(pattern=JOBS, dead_letter=DEAD_LETTERS),))


@pytest.mark.parametrize("is_stored", [False, True], ids=["memory", "store"])
async def test_a_pause_of_the_owner_makes_no_second_letter_of_an_expiry(
    autojump_clock: MockClock, is_stored: bool
) -> None:
    async with three(destinations=DROPPED).run() as mesh:
        await publish(mesh, "a", "1", ttl="3000")
        nodes = mesh.nodes
        await eventually(
            lambda: len({tuple(sorted(one.engine.path.durable_vector().items())) for one in nodes.values()}) == 1
        )
        for node in nodes.values() if is_stored else ():
            await node.engine.checkpoints.checkpoint()
        readers = [await mesh.connect(name) for name in "ab"]
        for reader in readers:
            await reader.send(subscribe(DEAD_LETTERS, ack="auto"))
            await reader.receipt()
        isolate(mesh, "a")
        # The owner still has its lease, and a consumer of its own.
        letter = await readers[0].next("MESSAGE")
        await eventually(
            lambda: "a" in {*nodes["b"].mesh_parts.takeover.terms_served, *nodes["c"].mesh_parts.takeover.terms_served}
        )
        await trio.sleep(5)
        rejoin(mesh, "a")
        await mesh.until_linked()
        await eventually(
            lambda: not nodes["b"].mesh_parts.takeover.terms_served and not nodes["c"].mesh_parts.takeover.terms_served
        )
        await trio.sleep(60)

        for reader in readers:
            with trio.move_on_after(5):
                again = await reader.next("MESSAGE")
                # What a consumer of a silent node had may come again, and is marked.
                assert again.head.headers["redelivered"] == "true"
                assert again.head.headers["message-id"] == letter.head.headers["message-id"]


async def test_of_an_owner_that_stays_away_the_letter_of_an_expiry_comes_later(autojump_clock: MockClock) -> None:
    async with three(destinations=DROPPED).run() as mesh:
        await publish(mesh, "a", "1", "2", ttl="8000")
        await eventually(
            lambda: mesh.nodes["b"].engine.path.durable_vector() == mesh.nodes["a"].engine.path.durable_vector()
        )
        await mesh.kill("a")
        reader, other = await mesh.connect("b"), await mesh.connect("b")
        await reader.send(subscribe(DEAD_LETTERS, ack="auto"))
        await other.send(subscribe(JOBS, ack="auto"))
        began = trio.current_time()

        await trio.sleep(DEAD_LETTERS_WAIT_US / 1_000_000)
        assert await reader.messages(2) == [b"1", b"2"]
        assert trio.current_time() - began > 5 + DEAD_LETTERS_WAIT_US / 1_000_000, "it counts from the takeover"
        await nothing_more(other)


async def settle(client: Client) -> str:
    message = await client.next("MESSAGE")
    await client.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:s\n\n")
    await client.receipt()
    return message.body.decode()


async def silence(client: Client, seconds: float) -> None:
    with trio.move_on_after(seconds):
        message = await client.next("MESSAGE")
        raise AssertionError(f"{message.body!r} was delivered")


def serves(rig: MeshRig, name: str) -> set[str]:
    return rig.nodes[name].broker.queues.owned.serves


async def everywhere(rig: MeshRig) -> None:
    """Every node has every record on its disk."""
    nodes = rig.nodes.values()
    await eventually(
        lambda: all(n.engine.path.durable_vector() == next(iter(nodes)).engine.path.durable_vector() for n in nodes)
    )


def hold_checkpoints(node: Node) -> trio.Event:
    """No checkpoint of this node begins before the event is set: nothing arrives before that."""
    checkpoint, go_on = node.engine.checkpoints.checkpoint, trio.Event()

    async def late_checkpoint() -> None:
        await go_on.wait()
        await checkpoint()

    node.engine.checkpoints.checkpoint = late_checkpoint  # type: ignore[method-assign]
    return go_on


async def test_a_term_that_none_can_follow_ends_no_link(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        a = rig.nodes["a"]
        a.mesh_parts.takeover.noted(TermNote("a", (1 << 63) - 1, "b", is_vote=False))
        await trio.sleep(3 * AFTER)

        assert all(rig.link(one, other) == "caught-up" for one in "abc" for other in "abc" if one != other)
        assert "refused-bad-frame" not in [one["code"] for one in reported(a)]


async def test_messages_of_a_silent_node_are_handed_out_by_another(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one", "two", "three")
        await everywhere(rig)
        isolate(rig, "a")
        silent_since = trio.current_time()

        worker = await consumer(rig, "c")

        assert [await settle(worker) for _ in range(3)] == ["one", "two", "three"]
        assert trio.current_time() - silent_since < AFTER + SPARE
        assert serves(rig, "b") == {"a", "b"}


async def test_letters_at_the_node_that_took_over_share_what_is_left_of_the_copies(autojump_clock: MockClock) -> None:
    policies = (
        DestinationPolicy(pattern="/queue/first", dead_letter="/exchange/amq.fanout"),
        DestinationPolicy(pattern="/queue/other", dead_letter="/exchange/amq.fanout"),
    )
    async with three(destinations=DestinationSettings(policies=policies)).run() as rig:
        client = await rig.connect("a")
        for queue in ("first", "other", "third"):
            await client.send(
                f"SEND\ndestination:/control/bind/queue/{queue}\nsource:/exchange/amq.fanout\nreceipt:b\n\n"
            )
            await client.receipt()
        await client.send(send("/exchange/amq.fanout", "x", "r", ttl="60000"))
        await client.receipt()
        await everywhere(rig)
        for node in rig.nodes.values():
            await node.engine.checkpoints.checkpoint()
        isolate(rig, "a")
        await eventually(lambda: "a" in serves(rig, "b") | serves(rig, "c"))

        await trio.sleep(90.0)

        server = rig.nodes["b" if "a" in serves(rig, "b") else "c"]
        left = [one for queue in server.broker.queues.by_name.values() for one in queue.waiting() if not one.settled]
        assert sorted((one.envelope.destination, copies_left(one.envelope.headers)) for one in left) == [
            ("/queue/first", 166),
            ("/queue/other", 166),
            ("/queue/third", 166),
            ("/queue/third", 166),
        ]


async def test_a_node_that_has_heard_the_owner_a_moment_longer_votes_a_moment_later(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three().run() as rig:
        await everywhere(rig)
        voter = rig.nodes["c"].mesh_parts.takeover.rules
        vote, early = voter.vote, []

        def vote_later(bid: Bid, now: float) -> bool:
            if not early:
                early.append(bid)
                return False
            return vote(bid, now)

        monkeypatch.setattr(voter, "vote", vote_later)
        isolate(rig, "a")

        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        assert [bid.candidate for bid in early] == ["b"]
        assert rig.nodes["b"].mesh_parts.takeover.rules.term_of("a").number == early[0].term


def hand_out(rig: MeshRig, owner: str) -> set[str]:
    """The nodes that may hand out messages of `owner` at this moment."""
    found: set[str] = set()
    for name, node in rig.nodes.items():
        rules, queues = node.mesh_parts.takeover.rules, node.broker.queues
        if owner in queues.owned.serves and not queues.held and rules.leads(owner, node.environment.boot_seconds()):
            found.add(name)
    return found


async def watch_until_served(rig: MeshRig, owner: str, *servers: str) -> None:
    """Look at every moment until one of `servers` hands out the messages of `owner`, and never two nodes at once."""
    while True:
        found = hand_out(rig, owner)
        assert len(found) <= 1, found
        if found.intersection(servers):
            return
        await trio.sleep(0.1)


def conditions(rig: MeshRig, name: str) -> list[str]:
    return [one["code"] for one in present(rig.nodes[name])]


async def test_the_conditions_of_a_takeover_are_over_when_the_owner_serves_itself_again(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        assert conditions(rig, "b") == ["takeover"]

        rejoin(rig, "a")
        await eventually(lambda: "returned" in {one["code"] for one in reported(rig.nodes["a"])})

        assert [conditions(rig, name) for name in "abc"] == [[], [], []]


@pytest.mark.parametrize("changes", [{"takeover_after_seconds": 2 * AFTER}, {"takeover": False}])
async def test_nodes_with_different_takeover_settings_do_not_link_until_they_are_the_same(
    autojump_clock: MockClock, changes: dict[str, Any]
) -> None:
    rig = three()
    async with rig.run():
        await everywhere(rig)
        await rig.stop("a")
        rig.mesh_changes = {"a": changes}
        await rig.start("a")
        differs = {"takeover-differs", "refused-takeover-differs"}
        await eventually(lambda: differs.issubset(conditions(rig, "a")) and "takeover-differs" in conditions(rig, "b"))
        assert rig.nodes["a"].mesh.linked() == set()  # type: ignore[union-attr]

        rig.mesh_changes = {}
        await rig.stop("a")
        await rig.start("a")

        await eventually(lambda: rig.nodes["a"].mesh.linked() == {"b", "c"})  # type: ignore[union-attr]
        await eventually(lambda: not any(differs.intersection(conditions(rig, name)) for name in "abc"))


async def test_what_was_taken_over_goes_back_to_its_owner_after_takeover_is_turned_off(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        for name in "abc":
            await rig.stop(name)
        rejoin(rig, "a")
        rig.mesh_changes = dict.fromkeys("abc", {"takeover": False})
        for name in "abc":
            await rig.start(name)

        await eventually(lambda: [serves(rig, name) for name in "abc"] == [{"a"}, {"b"}, {"c"}])
        assert await settle(await consumer(rig, "a")) == "one"


async def test_a_time_of_takeovers_that_is_shortened_while_the_owner_is_cut_off_begins_when_the_longer_one_is_over(
    autojump_clock: MockClock,
) -> None:
    async with three(mesh={"takeover_after_seconds": 6 * AFTER}).run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        isolate(rig, "a")
        rig.mesh_changes = dict.fromkeys("bc", {"takeover_after_seconds": AFTER})
        for name in "bc":
            await rig.kill(name)
            await rig.start(name)
        # A second restart has to know it as well.
        await rig.kill("c")
        await rig.start("c")

        with trio.fail_after(10 * AFTER):
            await watch_until_served(rig, "a", "b", "c")


async def test_a_shortened_time_of_takeovers_holds_once_the_longer_one_is_over(autojump_clock: MockClock) -> None:
    async with three(mesh={"takeover_after_seconds": 6 * AFTER}).run() as rig:
        rig.mesh_changes = dict.fromkeys("abc", {"takeover_after_seconds": AFTER})
        for name in "abc":
            await rig.stop(name)
            await rig.start(name)
        await trio.sleep(7 * AFTER)
        for name in "bc":
            await rig.stop(name)
            await rig.start(name)
        await rig.until_linked()
        await trio.sleep(AFTER)
        isolate(rig, "a")

        with trio.fail_after(AFTER + SPARE):
            await watch_until_served(rig, "a", "b")


async def test_nothing_is_taken_over_from_a_node_that_a_majority_hears(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        rig.cut("a", "b")

        await trio.sleep(3 * AFTER)

        assert [serves(rig, name) for name in rig.names] == [{"a"}, {"b"}, {"c"}]
        assert await settle(await consumer(rig, "c")) == "one"


async def test_a_node_that_is_alone_hands_out_nothing_that_another_may_hand_out(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        isolate(rig, "a")
        await trio.sleep(AFTER)

        worker = await consumer(rig, "a")
        await silence(worker, 3 * AFTER)
        rejoin(rig, "a")

        assert await settle(worker) == "one"


async def test_a_node_without_a_majority_reports_it_until_it_hears_one_again(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        node = rig.nodes["a"]
        await rig.kill("b")
        await trio.sleep(HELD_SECONDS + AFTER)
        assert "queues-held" not in {one["code"] for one in reported(node)}

        await rig.kill("c")
        await eventually(lambda: node.broker.queues.held)
        assert "queues-held" not in {one["code"] for one in reported(node)}, "a restart takes less"
        await trio.sleep(HELD_SECONDS + 1)
        assert [one["message"] for one in present(node) if one["code"] == "queues-held"] == [HELD]

        await rig.start("c")
        await eventually(lambda: not node.broker.queues.held)
        assert "queues-held" not in {one["code"] for one in present(node)}


async def test_an_owner_that_is_back_serves_its_messages_again(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one", "two")
        await everywhere(rig)
        isolate(rig, "a")
        worker = await consumer(rig, "c", prefetch="1")
        assert await settle(worker) == "one"

        rejoin(rig, "a")

        await eventually(lambda: serves(rig, "a") == {"a"} and serves(rig, "b") == {"b"})
        await eventually(lambda: not rig.nodes["a"].broker.queues.held)
        assert await settle(worker) == "two"
        await silence(worker, QUIET_SECONDS)


async def test_an_owner_whose_messages_did_not_come_back_in_time_asks_for_them_again(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        checkpoints = rig.nodes["a"].engine.checkpoints
        checkpoint = checkpoints.checkpoint
        failed: list[str] = []

        async def no_room_once() -> None:
            if not failed:
                failed.append("no room")
                raise DiskFull("no room for a checkpoint")
            await checkpoint()

        checkpoints.checkpoint = no_room_once  # type: ignore[method-assign]
        rejoin(rig, "a")

        await eventually(lambda: serves(rig, "a") == {"a"} and not rig.nodes["a"].broker.queues.held)
        assert failed
        assert await settle(await consumer(rig, "c")) == "one"


async def test_an_owner_that_stood_still_while_its_messages_came_back_asks_for_them_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        takeover = rig.nodes["a"].mesh_parts.takeover
        claims, over = takeover.claims, []

        def claims_again_soon(owner: str, number: int) -> bool:
            """Its lease was over when what it waited for was there, and a moment later it has a new one."""
            if not over:
                over.append(number)
                return False
            return claims(owner, number)

        monkeypatch.setattr(takeover, "claims", claims_again_soon)
        rejoin(rig, "a")

        await eventually(lambda: serves(rig, "a") == {"a"} and not rig.nodes["a"].broker.queues.held)
        assert over
        assert await settle(await consumer(rig, "c")) == "one"


async def test_what_this_node_has_forgotten_is_not_waited_for_although_a_voter_names_it(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        dead = Origin("c", 1)
        for name in ("a", "b"):
            rig.nodes[name].mesh_parts.incarnation_gc.seals.forget([dead])
        voter = rig.nodes["c"]
        durable = voter.engine.path.durable_vector
        voter.engine.path.durable_vector = lambda: {**durable(), dead: 5}  # type: ignore[method-assign]
        isolate(rig, "a")

        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        assert await settle(await consumer(rig, "b")) == "one"


async def test_what_a_consumer_holds_is_not_handed_out_again_by_the_new_server(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one", "two")
        holder = await consumer(rig, "c", prefetch="1")
        held = await holder.next("MESSAGE")
        await everywhere(rig)
        isolate(rig, "a")
        worker = await consumer(rig, "b")

        assert await settle(worker) == "two"
        await silence(worker, QUIET_SECONDS)
        rejoin(rig, "a")
        await eventually(lambda: serves(rig, "a") == {"a"})
        await silence(worker, QUIET_SECONDS)

        await holder.send(f"ACK\nid:{held.head.headers['ack']}\nreceipt:s\n\n")
        await holder.receipt()
        await silence(worker, QUIET_SECONDS)


@pytest.mark.parametrize("leaves", ["closes", "refuses", "unsubscribes"])
async def test_what_another_consumer_has_acknowledged_does_not_come_back_from_the_one_that_had_it_first(
    autojump_clock: MockClock, leaves: str
) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        first = await consumer(rig, "a")
        message = await first.next("MESSAGE")
        await trio.sleep(1)
        isolate(rig, "a")
        worker = await consumer(rig, "b")
        assert await settle(worker) == "one"
        rejoin(rig, "a")
        await eventually(lambda: serves(rig, "a") == {"a"} and serves(rig, "b") == {"b"})
        await eventually(lambda: not rig.nodes["a"].broker.queues.held)
        await everywhere(rig)

        assert depths(rig.nodes["a"]) == {}
        if leaves == "closes":
            first.pipe.close()
        elif leaves == "refuses":
            await first.send(f"NACK\nid:{message.head.headers['ack']}\n\n")
        else:
            await first.send("UNSUBSCRIBE\nid:0\n\n")
        await silence(await consumer(rig, "a"), QUIET_SECONDS)
        await silence(worker, QUIET_SECONDS)
        assert not rig.nodes["a"].broker.queues.owned.in_hand


async def test_what_is_released_in_the_midst_of_a_campaign_is_not_handed_out_again_when_it_is_won(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        a, b, c = (rig.nodes[name] for name in "abc")
        lent = Dot(a.origin, 1)
        begun = Campaign(Bid("a", 7, "a"), trio.current_time() + AFTER, confirms=False, released=None)
        a.mesh_parts.takeover.elections.campaigns.by_owner["a"] = begun

        out = Outcome(now_us=a.environment.now_us())
        way = LinkOutbox(encode_send, bool)
        a.mesh_parts.takeover.terms_came(b.origin, Release("a", 6, {}, {"c": [lent]}), way, out)
        for voter in (b, c):
            a.mesh_parts.takeover.terms_came(voter.origin, Vote("a", 7, {}), way, out)
        a.engine.path.submit(out)

        lent_elsewhere = a.broker.queues.handoff.with_peers("a")
        await eventually(lambda: "a" not in a.mesh_parts.takeover.sync)
        assert lent_elsewhere == {"c": [lent]}


async def test_a_node_that_serves_again_waits_for_an_absent_holder_as_long_as_for_one_that_has_just_left(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one", "two")
        holder = await consumer(rig, "c", prefetch="1")
        await holder.next("MESSAGE")
        await everywhere(rig)
        isolate(rig, "a")
        worker = await consumer(rig, "b")
        assert await settle(worker) == "two"
        # a has missed c for nearly as long as it waits for what it has lent.
        await eventually(lambda: rig.link("a", "c") == "down")
        await trio.sleep(MeshSettings().redeliver_after_seconds - 7)
        rig.heal("a", "b")

        await eventually(lambda: serves(rig, "a") == {"a"})

        await silence(worker, 20)


async def test_what_is_given_back_after_a_takeover_goes_to_another_consumer(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        holder = await consumer(rig, "c")
        await holder.next("MESSAGE")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        worker = await consumer(rig, "b")

        holder.pipe.close()

        assert await settle(worker) == "one"


async def test_what_an_owner_accepts_while_another_serves_it_is_served_there(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "before")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        await publish(rig, "a", "alone")
        worker = await consumer(rig, "c")
        assert await settle(worker) == "before"
        await silence(worker, 20)

        rejoin(rig, "a")

        assert await settle(worker) == "alone"


async def test_what_is_on_its_way_while_its_owner_goes_on_in_a_new_term_is_handed_out_again(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        owner, borrower = rig.nodes["a"].mesh_parts.takeover, rig.nodes["b"].mesh_parts.takeover
        may_borrow, dropped = borrower.may_borrow, []

        def stale_at_first(*loan: Any) -> Mapping[str, bool | None]:
            if dropped:
                return may_borrow(*loan)
            dropped.append(loan)
            # Somebody has asked for votes, and got one: the owner has to confirm its right.
            rig.nodes["c"].mesh_parts.takeover.rules.promised["a"] = Term(4, "b")
            return {"a": None}

        borrower.may_borrow = stale_at_first  # type: ignore[method-assign]
        worker = await consumer(rig, "b", prefetch="1")
        await publish(rig, "a", "one")

        with trio.fail_after(QUIET_SECONDS):
            assert await settle(worker) == "one"
        assert dropped
        assert owner.rules.term_of("a") == Term(5, "a")
        await silence(worker, QUIET_SECONDS)


async def test_what_came_back_while_its_owner_returned_is_not_taken_to_be_elsewhere(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        worker = await consumer(rig, "c")
        await worker.next("MESSAGE")
        a = rig.nodes["a"]
        go_on = hold_checkpoints(a)
        # The server names to the owner who has it, and hears no more when that one gives it back.
        rig.heal("a", "b")
        await eventually(
            lambda: serves(rig, "b") == {"b"} and rig.nodes["c"].mesh_parts.takeover.rules.term_of("a").server == "a"
        )
        worker.pipe.close()
        await eventually(lambda: not rig.nodes["c"].sessions)
        rig.heal("a", "c")
        await rig.until_linked()
        go_on.set()

        with trio.fail_after(QUIET_SECONDS):
            assert await settle(await consumer(rig, "b")) == "one"


async def test_what_is_given_back_while_its_owner_returns_is_not_taken_to_be_elsewhere(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        worker = await consumer(rig, "c")
        await worker.next("MESSAGE")
        a = rig.nodes["a"]
        go_on = hold_checkpoints(a)
        rejoin(rig, "a")
        handoff = a.broker.queues.handoff
        # The node that has it says so, and gives it back to the owner, which has not begun yet.
        await eventually(lambda: bool(handoff.held_by("c")) and rig.link("c", "a") == "caught-up")
        worker.pipe.close()
        await eventually(lambda: not handoff.held_by("c"))
        assert serves(rig, "a") == set()
        go_on.set()

        with trio.fail_after(QUIET_SECONDS):
            assert await settle(await consumer(rig, "b")) == "one"


async def test_a_loan_that_waits_for_a_slow_link_while_its_server_goes_on_in_a_new_term_comes_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three().run() as rig:
        a, b = rig.nodes["a"], rig.nodes["b"]
        workers = [await consumer(rig, "b", prefetch="10") for _ in range(2)]
        outbox = a.mesh._registry.servings["b"].outbox  # type: ignore[union-attr]
        take = outbox.take

        def take_no_loans() -> bytes:
            loans, outbox._lends = outbox._lends, deque()
            try:
                return take()
            finally:
                outbox._lends = loans

        monkeypatch.setattr(outbox, "take", take_no_loans)
        await publish(rig, "a", "one")
        await eventually(lambda: len(outbox._lends) == 1)
        # Somebody has voted for another while it did not hear this one, which has to confirm its right.
        rig.nodes["c"].mesh_parts.takeover.rules.promised["a"] = Term(1, "c")
        await eventually(lambda: b.mesh_parts.takeover.rules.term_of("a").number > 1)
        await eventually(lambda: len(outbox._lends) == 2)
        monkeypatch.setattr(outbox, "take", take)
        outbox.wake()

        bodies: list[bytes] = []
        for worker in workers:
            with trio.move_on_after(QUIET_SECONDS):
                bodies.append((await worker.next("MESSAGE")).body)
        assert bodies == [b"one"]


async def test_a_loan_of_the_new_term_is_not_taken_for_one_of_the_term_before(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three().run() as rig:
        a, b = rig.nodes["a"], rig.nodes["b"]
        workers = [await consumer(rig, "b", prefetch="10") for _ in range(2)]
        rig.cut("b", "c")
        await eventually(lambda: "c" not in b.mesh.linked())  # type: ignore[union-attr]
        registry = a.mesh._registry
        for way in (registry.servings["b"], registry.followings["b"]):
            monkeypatch.setattr(way.outbox, "take", bytes)
        await publish(rig, "a", "one")
        await eventually(lambda: bool(a.broker.lending.lent.get("b")))
        # Somebody has voted for another while it did not hear this one, which has to confirm its right.
        rig.nodes["c"].mesh_parts.takeover.rules.promised["a"] = Term(1, "c")
        await eventually(lambda: a.mesh_parts.takeover.rules.term_of("a").number > 1)

        # Who lost the loan hears of the new term when the next link has begun, and is lent the message once more.
        rig.fabric.break_between(host_of(0), host_of(1))

        bodies: list[bytes] = []
        for worker in workers:
            with trio.move_on_after(QUIET_SECONDS):
                bodies.append((await worker.next("MESSAGE")).body)
        assert bodies == [b"one"]


async def test_what_a_peer_has_held_in_another_term_is_not_believed_to_be_with_it(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        a, b = rig.nodes["a"], rig.nodes["b"]
        dots = [
            Dot(origin, sequence) for origin, owned in a.broker.queues.owned.by_origin.items() for sequence in owned
        ]
        out = Outcome(now_us=a.environment.now_us())

        a.mesh_parts.takeover.terms_came(b.origin, Holds("a", 7, dots), LinkOutbox(encode_send, bool), out)
        a.engine.path.submit(out)

        assert await settle(await consumer(rig, "c")) == "one"


async def test_a_node_that_starts_hands_out_nothing_before_it_has_what_a_majority_had(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        worker = await consumer(rig, "c")
        await publish(rig, "a", "one")
        message = await worker.next("MESSAGE")
        await rig.stop("a")
        await worker.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:r\n\n")
        assert await worker.receipt() == "r"
        rig.cut("a", "c")
        rig.slow_disk("b", 12.0)

        a = await rig.start("a")
        again = await consumer(rig, "a")
        while not a.mesh.has_synced_with_majority():
            await silence(again, 0.1)

        await silence(again, QUIET_SECONDS)


async def test_a_takeover_that_is_given_up_in_the_midst_of_a_checkpoint_leaves_it_whole(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        b = rig.nodes["b"]
        checkpoint, stored, noted = b.store.checkpoint, [], []
        given_up: list[str] = []
        could_not_begin = b.mesh_parts.takeover.could_not_begin

        def slow_checkpoint(*arguments: Any) -> Any:
            report = checkpoint(*arguments)
            stored.append(report)
            # The rest of this call takes much longer than a takeover is waited for, and is not drawn.
            rig.slow_disk("b", 120.0 if len(stored) == 1 else 0.002, exactly=len(stored) == 1)
            return report

        def note_given_up(owner: str, number: int) -> None:
            given_up.append(owner)
            could_not_begin(owner, number)

        monkeypatch.setattr(b.store, "checkpoint", slow_checkpoint)
        b.engine.checkpoints.follow(noted.append)
        monkeypatch.setattr(b.mesh_parts.takeover, "could_not_begin", note_given_up)

        isolate(rig, "a")
        await trio.sleep(60.0)

        assert given_up[:1] == ["a"], "the takeover did not meet the slow disk"
        assert noted == stored


async def test_a_takeover_that_hangs_keeps_no_other_owner_from_being_served(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c", "d", "e").run() as rig:
        await publish(rig, "b", "of b")
        await everywhere(rig)
        # Each node that is left is in the midst of a campaign for the first of the two, for ever.
        for name in "cde":
            hanging = Campaign(Bid("a", 1, name), math.inf, confirms=False, released=None)
            hanging.asked_at = math.inf
            rig.nodes[name].mesh_parts.takeover.elections.campaigns.by_owner["a"] = hanging
        for name in "ab":
            await rig.kill(name)

        worker = await consumer(rig, "c")

        with trio.fail_after(AFTER + SPARE):
            message = await worker.next("MESSAGE")
        assert message.body == b"of b"
        assert not any("a" in serves(rig, name) for name in "cde")


async def test_what_leaves_a_server_that_has_let_go_meanwhile_is_not_taken(autojump_clock: MockClock) -> None:
    """What is lent waits until it is durable, so it may leave after its owner is served elsewhere."""
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        server = rig.nodes["b"]
        lend, late = server.mesh.lend, []  # type: ignore[union-attr]

        def lend_late(peer: str, messages: list[Message]) -> None:
            if not late and any(message.origin.node == "a" for message in messages):
                late.append(messages)
                server.mesh_parts.takeover.terms_came(
                    rig.nodes["a"].origin, Release("a", 1), LinkOutbox(encode_send, bool), Outcome()
                )
                assert serves(rig, "b") == {"b"}
            lend(peer, messages)

        server.mesh.lend = lend_late  # type: ignore[union-attr, method-assign]
        worker = await consumer(rig, "c")
        await eventually(lambda: late)
        rejoin(rig, "a")

        assert await settle(worker) == "one"
        await silence(worker, QUIET_SECONDS)


@pytest.mark.parametrize("count", [1500])
async def test_a_large_backlog_is_taken_over_and_given_back_without_loss_or_repeat(
    autojump_clock: MockClock, count: int
) -> None:
    bodies = [str(number) for number in range(count)]
    async with three(limits={"queue_messages_in_memory_max": 1000}).run() as rig:
        await publish(rig, "a", *bodies)
        await everywhere(rig)
        isolate(rig, "a")
        worker = await consumer(rig, "c", prefetch="100")
        seen = await worker.consume(count // 2)

        rejoin(rig, "a")
        await eventually(lambda: serves(rig, "a") == {"a"})
        seen += await worker.consume(count - count // 2)

        assert sorted(map(int, seen)) == list(map(int, bodies))
        await silence(worker, QUIET_SECONDS)


async def test_a_node_without_any_link_hands_out_what_never_left_it_past_what_may_have(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "old")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: rig.nodes["a"].broker.queues.isolated_mode.after is not None)

        await publish(rig, "a", "new", "newer", "newest")
        worker = await consumer(rig, "a", prefetch="1")

        assert [await settle(worker) for _ in range(2)] == ["new", "newer"]
        rejoin(rig, "a")
        seen = [await settle(worker), await settle(worker)]
        assert sorted(seen) == ["newest", "old"]
        await silence(worker, QUIET_SECONDS)


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("where", ["b", "c"])
async def test_times_of_messages_mean_the_same_when_another_serves_them(
    autojump_clock: MockClock, hours: int, where: str
) -> None:
    rig = three()
    rig.skews_us = {"a": hours * 3600 * 1_000_000, "c": -2 * hours * 3600 * 1_000_000}
    async with rig.run():
        await publish(rig, "a", "late", ttl="5000")
        await publish(rig, "a", "in time", ttl="60000")
        await publish(rig, "a", "much later", delay="30000", ttl="120000")
        began = trio.current_time()
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        worker = await consumer(rig, where)

        assert await settle(worker) == "in time"
        assert await settle(worker) == "much later"
        assert 29 < trio.current_time() - began < 35
        await eventually(lambda: not depths(rig.nodes["b"]))


async def test_failures_of_a_message_are_counted_whichever_node_serves_it(autojump_clock: MockClock) -> None:
    policy = DestinationPolicy(pattern=JOBS, delivery_limit=7, redelivery_seconds_min=0.1, redelivery_seconds_max=0.1)
    async with three(destinations=DestinationSettings(policies=(policy,))).run() as rig:
        await publish(rig, "a", "poison")
        seen: list[int] = []
        for turn in range(3):
            for where in ("c", "b"):
                worker = await consumer(rig, where)
                message = await worker.next("MESSAGE")
                seen.append(int(message.head.headers.get("delivery-count", "1")))
                await worker.send(f"NACK\nid:{message.head.headers['ack']}\nreceipt:n\n\n")
                await worker.receipt()
                worker.pipe.close()
                await trio.sleep(1)
            if turn == 0:
                await everywhere(rig)
                isolate(rig, "a")
                await eventually(lambda: serves(rig, "b") == {"a", "b"})
            elif turn == 1:
                rejoin(rig, "a")
                await eventually(lambda: serves(rig, "a") == {"a"} and serves(rig, "b") == {"b"})

        assert seen == [1, 2, 3, 4, 5, 6]


async def test_a_message_that_fails_at_its_owner_while_another_serves_it_is_one_dead_letter(
    autojump_clock: MockClock,
) -> None:
    policy = DestinationPolicy(pattern=JOBS, delivery_limit=1)
    async with three(destinations=DestinationSettings(policies=(policy,))).run() as rig:
        await publish(rig, "a", "poison")
        at_owner = await consumer(rig, "a")
        await at_owner.next("MESSAGE")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})

        at_owner.pipe.close()
        refuses = await consumer(rig, "b")
        message = await refuses.next("MESSAGE")
        await refuses.send(f"NACK\nid:{message.head.headers['ack']}\nrequeue:false\nreceipt:n\n\n")
        await refuses.receipt()
        rejoin(rig, "a")
        await eventually(lambda: serves(rig, "a") == {"a"})
        await everywhere(rig)

        assert sum(depths(node).get(DEAD_LETTERS, 0) for node in rig.nodes.values()) == 1


async def test_what_was_being_read_of_a_node_that_is_served_no_more_is_not_handed_out(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        node = rig.nodes["b"]
        read = node.store.queues.page
        asked: list[str] = []

        def page_and_then_the_owner_is_back(owner: str, *question: Any) -> Any:
            rows = read(owner, *question)
            if owner == "a" and not asked:
                asked.append(owner)
                node.broker.queues.handoff.cede("a", "a")
            return rows

        node.store.queues.page = page_and_then_the_owner_is_back  # type: ignore[method-assign]
        worker = await consumer(rig, "b")

        await silence(worker, 5)
        assert asked


async def test_a_node_that_lacks_what_others_have_dropped_leaves_a_takeover_to_them(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        # It will be stale from its next life on, until somebody has told it what is done; nobody answers.
        rig.nodes["b"].store.catalog.set_facts({UNCHECKED: ""})
        for name in ("a", "c"):
            rig.nodes[name].mesh_parts.responder.answer = refuse  # type: ignore[method-assign]
        await rig.stop("b")
        await rig.start("b")
        await eventually(lambda: rig.link("b", "c") == rig.link("c", "b") == "caught-up")
        isolate(rig, "a")

        await eventually(lambda: serves(rig, "c") == {"a", "c"})

        assert await settle(await consumer(rig, "c")) == "one"
        assert serves(rig, "b") == {"b"}


async def refuse(question: bytes) -> bytes:
    raise Refused("log-unreadable", "not now")


async def test_a_node_that_cannot_finish_a_takeover_leaves_it_to_another(autojump_clock: MockClock) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)

        async def no_room() -> None:
            raise DiskFull("no room for a checkpoint")

        rig.nodes["b"].engine.checkpoints.checkpoint = no_room  # type: ignore[method-assign]
        isolate(rig, "a")

        await eventually(lambda: serves(rig, "c") == {"a", "c"})
        assert await settle(await consumer(rig, "b")) == "one"
        assert "takeover-failed" in {one["code"] for one in reported(rig.nodes["b"])}


async def test_without_takeover_messages_wait_for_their_node(autojump_clock: MockClock) -> None:
    async with three(mesh={"takeover": False}).run() as rig:
        await publish(rig, "a", "one")
        await everywhere(rig)
        isolate(rig, "a")

        await silence(await consumer(rig, "c"), QUIET_SECONDS)

        assert await settle(await consumer(rig, "a")) == "one"


async def test_what_a_returned_owner_hands_out_after_a_restart_reaches_consumers_of_its_peers(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        await publish(rig, "a", "one", "two")
        await everywhere(rig)
        isolate(rig, "a")
        worker = await consumer(rig, "c", prefetch="1")
        assert await settle(worker) == "one"
        await settle(worker)
        rejoin(rig, "a")
        await eventually(lambda: serves(rig, "a") == {"a"} and serves(rig, "b") == {"b"})
        await everywhere(rig)

        await rig.kill("a")
        await rig.start("a")
        await publish(rig, "a", "three")

        assert await settle(worker) == "three"


async def test_what_a_durable_subscription_has_in_hand_is_no_queue_message_of_its_owner(
    autojump_clock: MockClock,
) -> None:
    async with three().run() as rig:
        reader = await rig.connect("a")
        await reader.send(subscribe("/fanout/f", ack="client-individual", durable="true"))
        await reader.receipt()
        await reader.send(send("/fanout/f", "news", "r"))
        await reader.receipt()
        message = await reader.next("MESSAGE")
        await everywhere(rig)
        isolate(rig, "a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        rejoin(rig, "a")
        await eventually(lambda: serves(rig, "a") == {"a"} and serves(rig, "b") == {"b"})

        await reader.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:s\n\n")
        await reader.receipt()

        assert [depths(node) for node in rig.nodes.values()] == [{}, {}, {}]
        assert not any(node.broker.queues.owned.elsewhere for node in rig.nodes.values())


async def test_a_node_that_starts_again_gets_no_echo_of_its_earlier_run(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its machine was booted again, such an echo could be of a time to come, and would bear a lease until then."""
    echoes: list[float] = []
    heartbeat_received, links_changed = Elections.heartbeat_received, Takeover.links_changed

    def note(self: Elections, peer: Origin, beat: Beat, now: float) -> Beat | None:
        if self.rules.node == "a":
            echoes.append(beat.echo_us / 1e6)
        return heartbeat_received(self, peer, beat, now)

    def due_now(self: Takeover) -> None:
        self.elections._sent_at = float("-inf")
        links_changed(self)

    async with MeshRig("a", "b", "c").run() as mesh:
        await mesh.kill("a")
        began = trio.current_time()
        monkeypatch.setattr(Elections, "heartbeat_received", note)
        monkeypatch.setattr(Takeover, "links_changed", due_now)

        await mesh.start("a")
        await mesh.until_linked()

        assert any(echoes)
        assert not [echo for echo in echoes if 0 < echo < began]
