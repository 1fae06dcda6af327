"""SENDs with a dedup id that are tried again: on the same node, on others, in transactions, and at once."""

from contextlib import suppress
from typing import Any
from unittest.mock import patch

import argon2
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from qmq.broker.messages.dedup import sender_of
from qmq.broker.queues.state.first_attempts import FirstAttempts
from qmq.config import DestinationPolicy, DestinationSettings, PermissionSettings, User
from qmq.errors import Refused
from qmq.mesh.peers.calls import Replies
from qmq.mesh.peers.dedup_query import WAKING_SECONDS, DedupCall
from qmq.mesh.peers.rpc import ANSWER_SECONDS
from qmq.replication.protocol.frames import PeerRequest
from qmq.wire.stomp import Frame
from tests.mesh.membership.test_decommission import retire
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import ANSWER_SECONDS as PATIENCE
from tests.node.rig import Client, Rig, eventually, send, subscribe

pytestmark = pytest.mark.trio

Q = "/queue/jobs"
F = "/fanout/f"


def again(destination: str, body: str, receipt: str, id: str, **headers: str) -> str:
    return send(destination, body, receipt, dedup_id=id, redelivered="true", **headers)


def is_duplicate(receipt: Frame) -> bool:
    return receipt.head.headers.get("duplicate") == "true"


async def receipts(client: Client, count: int) -> list[tuple[str, bool]]:
    """(receipt, whether it is that of a duplicate), in the order in which they come."""
    found = [await client.next("RECEIPT") for _ in range(count)]
    return [(frame.head.headers["receipt-id"], is_duplicate(frame)) for frame in found]


async def consumed(client: Client, destination: str = Q) -> list[bytes]:
    """Everything that a new subscriber of the destination gets within some seconds."""
    await client.send(subscribe(destination, id="all"))
    bodies: list[bytes] = []
    with trio.move_on_after(5):
        while True:
            bodies += await client.messages(1)
    return bodies


@pytest.mark.parametrize("destination", [Q, F])
async def test_an_id_that_is_known_is_receipted_as_duplicate_and_not_appended(
    destination: str, autojump_clock: Any
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(
            send(destination, "1", "r1", dedup_id="x"),
            send(destination, "2", "r2"),
            send(destination, "1 again", "r3", dedup_id="x"),
            send(destination, "3", "r4", dedup_id="y"),
            send(destination, "3 again", "r5", dedup_id="y"),
        )

        assert await receipts(client, 5) == [("r1", False), ("r2", False), ("r3", True), ("r4", False), ("r5", True)]
        assert await consumed(client, destination) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("word", ["qmq-dedup-id", "_AMQ_DUPL_ID"])
async def test_the_words_of_others_name_the_same_id(word: str, autojump_clock: Any) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(
            f"SEND\ndestination:{Q}\n{word}:a:b\nreceipt:1\n\none".replace("a:b", "a\\cb"),
            f"SEND\ndestination:{Q}\ndedup-id:a\\cb\nreceipt:2\n\ntwo",
        )

        assert await receipts(client, 2) == [("1", False), ("2", True)]


PASSWORD_HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
USERS = tuple(User(name=name, password_hash=PASSWORD_HASH, groups=("client",)) for name in ("ann", "bob"))


@pytest.mark.parametrize("destination", [Q, F])
async def test_a_user_cannot_suppress_a_message_of_another_by_its_id(destination: str, autojump_clock: Any) -> None:
    guests = PermissionSettings(user="anonymous", allow=("send", "subscribe"), destinations=("/*",))
    async with Rig(users=USERS, permissions=(guests,), anonymous=True).run() as rig:
        ann = await rig.connect(login="ann", passcode="secret")
        bob = await rig.connect(login="bob", passcode="secret")
        guest = await rig.connect()
        forged = sender_of("ann")
        await bob.send(send(destination, "bob's", "r", dedup_id="order-1", dedup_sender=forged))
        await guest.send(send(destination, "guest's", "r", dedup_id="order-1", dedup_sender=forged))
        assert await receipts(bob, 1) == await receipts(guest, 1) == [("r", False)]

        for client, body in ((ann, "ann's"), (bob, "bob's again"), (guest, "guest's again")):
            await client.send(send(destination, body, "r", dedup_id="order-1"))
        assert [await receipts(client, 1) for client in (ann, bob, guest)] == [
            [("r", False)],
            [("r", True)],
            [("r", True)],
        ]

        assert await consumed(await rig.connect(), destination) == [b"bob's", b"guest's", b"ann's"]


async def test_a_user_that_tries_again_at_another_node_is_known_there_and_after_a_restart(autojump_clock: Any) -> None:
    rig = MeshRig("a", "b", users=USERS)
    async with rig.run():
        first = await rig.connect("a", login="ann", passcode="secret")
        await first.send(send(Q, "ann's", "r", dedup_id="order-1"))
        assert await receipts(first, 1) == [("r", False)]
        ann = await rig.connect("b", login="ann", passcode="secret")
        bob = await rig.connect("b", login="bob", passcode="secret")

        await ann.send(again(Q, "ann's again", "r", "order-1"))
        await bob.send(again(Q, "bob's", "r", "order-1"))

        assert [await receipts(client, 1) for client in (ann, bob)] == [[("r", True)], [("r", False)]]
    async with rig.run():
        ann = await rig.connect("b", login="ann", passcode="secret")
        await ann.send(send(Q, "ann's again", "r", dedup_id="order-1"))
        assert await receipts(ann, 1) == [("r", True)]


async def test_an_id_counts_for_one_destination(autojump_clock: Any) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        names = (Q, "/queue/other", F, "/topic/t", "/topic/t")
        await client.send(*(send(name, "x", "r", dedup_id="x") for name in names))

        assert not any(duplicate for _, duplicate in await receipts(client, 5))


async def test_a_duplicate_in_a_full_queue_is_receipted(autojump_clock: Any) -> None:
    async with Rig(limits={"queue_messages_max": 1}).run() as rig:
        client = await rig.connect()
        await client.send(send(Q, "1", "r1", dedup_id="x"), send(Q, "1", "r2", dedup_id="x"))

        assert await receipts(client, 2) == [("r1", False), ("r2", True)]


async def test_what_was_consumed_is_a_duplicate_all_the_same(autojump_clock: Any) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(subscribe(Q), send(Q, "1", "r", dedup_id="x"))
        await client.messages(1)
        await client.send(send(Q, "1", "again", dedup_id="x"))

        await client.receipt()
        await client.receipt()
        assert await receipts(client, 1) == [("again", True)]


async def test_ids_are_known_after_a_restart(autojump_clock: Any) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.send(send(Q, "1", "r", dedup_id="x"))
        await client.receipt()
    async with rig.run():
        client = await rig.connect()
        await client.send(send(Q, "1", "r", dedup_id="x"), send(Q, "2", "s", dedup_id="y"))

        assert await receipts(client, 2) == [("r", True), ("s", False)]
        assert await consumed(client) == [b"1", b"2"]


async def test_a_start_looks_for_ids_in_the_end_of_the_journal_only(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.send(send(Q, "old", "r", dedup_id="old"))
        await client.receipt()
        for _ in range(3):
            await client.send(send(Q, "x" * 900_000, "r"))
            await client.receipt()
        await client.send(send(Q, "new", "r", dedup_id="new"))
        await client.receipt()
    monkeypatch.setattr("qmq.mesh.peers.dedup_query.REPLAY_BYTES", 1000)
    async with rig.run():
        client = await rig.connect()
        await client.send(send(Q, "old", "1", dedup_id="old"), send(Q, "new", "2", dedup_id="new"))

        assert await receipts(client, 2) == [("1", False), ("2", True)]


async def test_ids_are_forgotten_after_ten_minutes(autojump_clock: Any) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send(Q, "1", "r", dedup_id="x"))
        await client.receipt()
        await trio.sleep(601)
        await client.send(send(Q, "1", "r", dedup_id="x"))

        assert await receipts(client, 1) == [("r", False)]


async def test_a_duplicate_is_not_receipted_before_its_first_is_on_the_disk(autojump_clock: Any) -> None:
    async with Rig().run() as rig:
        node = rig.alive
        first, second = await rig.connect(), await rig.connect()
        free = trio.Event()
        run_blocking = node.environment._run_blocking

        async def stuck(call: Any) -> Any:
            await free.wait()
            return await run_blocking(call)

        node.environment._run_blocking = stuck  # type: ignore[assignment]
        await first.send(send(Q, "1", "r1", dedup_id="x"))
        await eventually(lambda: node.engine.commits.pending_bytes > 0)
        await second.send(send(Q, "1", "r2", dedup_id="x"))
        with trio.move_on_after(1):
            raise AssertionError((await second.any()).head)
        free.set()

        assert await receipts(second, 1) == [("r2", True)]


async def test_one_that_waits_for_its_turn_on_the_same_node_is_one(autojump_clock: Any) -> None:
    async with MeshRig().run() as mesh:
        clients = [await mesh.connect("a") for _ in range(3)]
        for client in clients:
            await client.send(again(Q, "1", "r", "x"))
        got = [await receipts(client, 1) for client in clients]

        assert sorted(duplicate for [(_, duplicate)] in got) == [False, True, True]


# On other nodes


async def test_what_another_node_has_is_not_appended(autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a, b = await mesh.connect("a"), await mesh.connect("b")
        await a.send(*(send(Q, str(n), f"r{n}", dedup_id=str(n)) for n in range(5)))
        await receipts(a, 5)
        await b.send(*(again(Q, str(n), f"r{n}", str(n)) for n in range(7)))

        assert await receipts(b, 7) == [(f"r{n}", n < 5) for n in range(7)]
        assert sorted(await consumed(b)) == [b"%d" % n for n in range(7)]


async def test_what_came_from_a_node_that_is_dead_is_known(autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a = await mesh.connect("a")
        await a.send(send(F, "1", "r", dedup_id="x"))
        await a.receipt()
        nodes = list(mesh.nodes.values())
        await eventually(
            lambda: all(node.engine.path.durable_vector() == nodes[0].engine.path.durable_vector() for node in nodes)
        )
        mesh.cut("a", "b")
        mesh.cut("a", "c")
        for name in ("b", "c"):
            client = await mesh.connect(name)
            # Without the word that it is tried again: the id alone says so.
            await client.send(send(F, "1", "r", dedup_id="x"))

            assert await receipts(client, 1) == [("r", True)]


async def test_a_record_that_came_round_through_a_third_node_is_asked_for(autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        mesh.cut("a", "b")
        a, b = await mesh.connect("a"), await mesh.connect("b")
        await a.send(send(F, "1", "r", dedup_id="x"))
        await a.receipt()
        await b.send(again(F, "1", "r", "x"))

        assert await receipts(b, 1) == [("r", True)]


async def test_without_a_peer_that_answers_it_is_appended_after_a_bound(autojump_clock: Any) -> None:
    async with MeshRig(mesh={"receipt_degrade_seconds": 0.1}).run() as mesh:
        mesh.cut("a", "b")
        client = await mesh.connect("b")
        began = trio.current_time()
        await client.send(again(Q, "1", "r", "x"), again(Q, "2", "s", "y"))

        assert await receipts(client, 2) == [("r", False), ("s", False)]
        assert trio.current_time() - began < ANSWER_SECONDS + 1


async def test_a_first_try_that_comes_late_is_believed_to_be_one_no_more(autojump_clock: Any) -> None:
    async with MeshRig().run() as mesh:
        a, b = await mesh.connect("a"), await mesh.connect("b")
        await b.send(again(Q, "1", "r", "x"))
        await b.receipt()
        mesh.nodes["a"].broker.dedup._known.clear()  # as if the record of b had not come yet
        mesh.nodes["a"].broker.dedup._order.clear()
        await a.send(send(Q, "1", "r", dedup_id="x"))

        assert await receipts(a, 1) == [("r", True)]


async def test_tried_on_two_nodes_at_once_it_is_one(autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        clients = [await mesh.connect(name) for name in ("a", "b", "c")]
        for number in range(20):
            for client in clients:
                await client.send(again(Q, str(number), "r", str(number)))
            got = [await receipts(client, 1) for client in clients]
            assert sorted(duplicate for [(_, duplicate)] in got) == [False, True, True], number

        assert sorted(await consumed(clients[0])) == sorted(b"%d" % n for n in range(20))


async def test_tried_on_three_nodes_at_once_it_is_one_behind_a_send_that_is_refused(autojump_clock: Any) -> None:
    full = DestinationSettings(policies=(DestinationPolicy(pattern="/queue/full", max_bytes=1),))
    async with MeshRig("a", "b", "c", destinations=full).run() as mesh:
        clients = [await mesh.connect(name, on_error="keep-open") for name in ("a", "b", "c")]
        for number in range(10):
            for client in clients:
                await client.send(
                    again("/queue/full", "too long", "no", f"no {number}"), again(Q, "x", "r", str(number))
                )
            for client in clients:
                await client.next("ERROR")
            got = [await receipts(client, 1) for client in clients]
            assert sorted(duplicate for [(_, duplicate)] in got) == [False, True, True], number

        assert len(await consumed(clients[0])) == 10


async def test_tried_on_three_nodes_at_once_it_is_one_behind_a_duplicate_when_disks_are_slow(
    autojump_clock: Any,
) -> None:
    async with MeshRig("a", "b", "c", limits={"commit_pending_bytes_max": 64}).run() as mesh:
        clients = [await mesh.connect(name) for name in ("a", "b", "c")]
        await clients[0].send(send(Q, "known", "known", dedup_id="known"))
        await clients[0].receipt()
        for number in range(10):
            for client in clients:
                await client.send(
                    again(Q, "x", "first", f"first {number}"),
                    again(Q, "known", "known", "known"),
                    again(Q, "x", "second", f"second {number}"),
                )
            got = [await receipts(client, 3) for client in clients]
            assert sorted(found[2] for found in got) == [("second", False), ("second", True), ("second", True)], number

        assert len(await consumed(clients[0])) == 1 + 2 * 10


async def test_the_session_keeps_its_order_while_peers_are_asked(autojump_clock: Any) -> None:
    async with MeshRig().run() as mesh:
        a, b = await mesh.connect("a"), await mesh.connect("b")
        await a.send(send(Q, "old", "r", dedup_id="old"))
        await a.receipt()
        await b.send(
            send(Q, "1", "r1"),
            again(Q, "2", "r2", "new"),
            again(Q, "old", "r3", "old"),
            send(Q, "3", "r4"),
            again(F, "4", "r5", "new"),
            "SEND\ndestination:/control/status\nreceipt:r6\n\n",
            again(Q, "old", "r7", "old"),
            "DISCONNECT\nreceipt:bye\n\n",
        )
        frames = [frame for frame in await b.until_closed() if frame.head.command == "RECEIPT"]

        told = [(frame.head.headers["receipt-id"], is_duplicate(frame)) for frame in frames]
        assert [receipt for receipt, _ in told] == ["r1", "r2", "r3", "r4", "r5", "r6", "r7", "bye"]
        assert [receipt for receipt, duplicate in told if duplicate] == ["r3", "r7"]
        got = [body for body in await consumed(await mesh.connect("b")) if body != b"old"]
        assert got == [b"1", b"2", b"3"]


async def test_bytes_that_are_not_stomp_are_refused_after_the_sends_before_them(autojump_clock: Any) -> None:
    async with MeshRig().run() as mesh:
        client = await mesh.connect("b")
        await client.send(again(Q, "1", "r1", "x"), "NONSENSE\n\n")
        frames = await client.until_closed()

        assert [frame.head.command for frame in frames] == ["RECEIPT", "ERROR"]


# Transactions


def transaction(name: str, *sends: str) -> list[str]:
    inside = [frame.replace("SEND\n", f"SEND\ntransaction:{name}\n", 1) for frame in sends]
    return [f"BEGIN\ntransaction:{name}\n\n", *inside, f"COMMIT\ntransaction:{name}\nreceipt:{name}\n\n"]


async def test_a_transaction_leaves_out_what_is_appended_already(autojump_clock: Any) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(
            send(Q, "1", dedup_id="1"),
            *transaction(
                "t", send(Q, "1", dedup_id="1"), send(Q, "2", dedup_id="2"), send(Q, "2", dedup_id="2"), send(Q, "3")
            ),
        )

        assert await receipts(client, 1) == [("t", False)]
        assert await consumed(client) == [b"1", b"2", b"3"]


async def test_a_transaction_that_is_tried_again_on_another_node_is_applied_once(autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a, b = await mesh.connect("a"), await mesh.connect("b")
        await a.send(*transaction("t", *(send(Q, str(n), dedup_id=str(n)) for n in range(3))))
        await receipts(a, 1)
        await b.send(*transaction("u", *(send(Q, str(n), dedup_id=str(n), redelivered="true") for n in range(4))))
        await receipts(b, 1)

        assert sorted(await consumed(b)) == [b"0", b"1", b"2", b"3"]


async def test_a_refused_transaction_teaches_no_ids(autojump_clock: Any) -> None:
    async with Rig(limits={"queue_messages_max": 1}).run() as rig:
        client = await rig.connect(on_error="keep-open")
        await client.send(*transaction("t", send(Q, "1", dedup_id="1"), send(Q, "2", dedup_id="2")))
        assert (await client.any()).head.command == "ERROR"
        await client.send(send(Q, "1", "r", dedup_id="1"))

        assert await receipts(client, 1) == [("r", False)]


# Peers that behave badly


@pytest.mark.parametrize(
    "question",
    [
        b'{"dedup":',
        b'{"dedup": ["00"], "node": "b", "at": 1}',
        b'{"dedup": 7, "node": "b", "at": 1}',
        b'{"dedup": [], "node": 7, "at": 1}',
        b'{"dedup": [], "at": "x", "node": "b"}',
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(question: bytes, autojump_clock: Any) -> None:
    async with MeshRig().run() as mesh:
        with pytest.raises(Refused):
            await mesh.nodes["a"].peer_rpc._answer(PeerRequest("dedup", question))


@pytest.mark.parametrize("number", [str((1 << 63) - 1), str((1 << 64) - 1), "1e300", f'"{1 << 70}"'])
async def test_a_question_with_a_number_beyond_all_bounds_keeps_later_questions_valid(
    number: str, autojump_clock: Any
) -> None:
    async with MeshRig().run() as mesh:
        a, b = await mesh.connect("a"), await mesh.connect("b")
        await b.send(again(Q, "1", "r", "x"))
        await b.receipt()
        await eventually(
            lambda: mesh.nodes["a"].engine.path.durable_vector() == mesh.nodes["b"].engine.path.durable_vector()
        )
        mesh.nodes["a"].broker.dedup._known.clear()  # as if the record of b had not come yet
        mesh.nodes["a"].broker.dedup._order.clear()
        with suppress(Refused):
            question = b'{"dedup": [], "node": "b", "at": %b}' % number.encode()
            await mesh.nodes["a"].peer_rpc._answer(PeerRequest("dedup", question))
        await a.send(again(Q, "1", "r", "x"))

        assert await receipts(a, 1) == [("r", True)]


async def test_an_answer_that_makes_no_sense_is_no_answer(autojump_clock: Any) -> None:
    async with MeshRig().run() as mesh:

        async def nonsense(request: PeerRequest) -> bytes:
            return b'[[99,"a",1,1],["x"]]'

        mesh.nodes["a"].peer_rpc._answer = nonsense  # type: ignore[method-assign]
        client = await mesh.connect("b")
        await client.send(again(Q, "1", "r", "x"))

        assert await receipts(client, 1) == [("r", False)]


async def test_a_peer_that_has_it_and_whose_record_does_not_come_is_named_in_the_receipt(autojump_clock: Any) -> None:
    async with MeshRig().run() as mesh:

        async def far(request: PeerRequest) -> bytes:
            return b'[[0,"a",1,1000]]'

        mesh.nodes["a"].peer_rpc._answer = far  # type: ignore[method-assign]
        client = await mesh.connect("b")
        await client.send(again(Q, "1", "r", "x"))
        receipt = await client.next("RECEIPT")

        assert is_duplicate(receipt)
        assert receipt.head.headers["copies"] == "1"


async def test_a_client_that_leaves_while_peers_are_asked_appends_nothing_and_blocks_none(
    autojump_clock: Any,
) -> None:
    async with MeshRig().run() as mesh:
        node = mesh.nodes["a"]
        before = node.broker.next_sequence

        async def never(call: DedupCall) -> Replies[Any]:
            await trio.sleep(PATIENCE / 2)
            return Replies({}, ["b"])

        node.peer_rpc.ask = never  # type: ignore[assignment,method-assign]
        client = await mesh.connect("a")
        await client.send(again(Q, "1", "r", "x"))
        await wait_all_tasks_blocked()
        node.stop()
        await trio.sleep(PATIENCE)

        assert node.broker.next_sequence == before
        assert not node.mesh_parts.dedup_query._deciding


@pytest.mark.parametrize("seconds", [25.0, 3.0])
async def test_a_node_that_was_away_asks_its_peers_before_it_appends_what_lay_in_its_sockets(
    seconds: float, autojump_clock: Any
) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        stale = await rig.connect("b")
        isolate(rig, "b")
        await trio.sleep(seconds)
        other = await rig.connect("c")
        await other.send(again(Q, "1", "r1", "x"))
        assert await receipts(other, 1) == [("r1", False)]

        rejoin(rig, "b")
        rig.sleep_machine("b", 25.0)
        await stale.send(send(Q, "1", "r1", dedup_id="x"), send(Q, "2", "r2", dedup_id="y"))

        assert await receipts(stale, 2) == [("r1", True), ("r2", False)]
        assert sorted(await consumed(await rig.connect("a"))) == [b"1", b"2"]


async def test_a_node_that_was_away_and_stays_without_peers_goes_on_after_some_seconds(autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        client = await rig.connect("b")
        isolate(rig, "b")
        rig.sleep_machine("b", 25.0)
        began = trio.current_time()

        await client.send(send(Q, "1", "r1", dedup_id="x"))
        assert await receipts(client, 1) == [("r1", False)]
        await client.send(send(Q, "2", "r2", dedup_id="y"))
        assert await receipts(client, 1) == [("r2", False)]

        assert trio.current_time() - began < WAKING_SECONDS + 2 * ANSWER_SECONDS + 2


async def test_a_node_whose_links_have_caught_up_asks_about_first_attempts_no_more(autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        node = rig.nodes["b"]
        client = await rig.connect("b")
        rig.sleep_machine("b", 25.0)
        await client.send(send(Q, "1", "r1", dedup_id="x"))
        await receipts(client, 1)
        assert node.mesh_parts.dedup_query.asked == 1
        await trio.sleep(WAKING_SECONDS)
        await client.send(send(Q, "2", "r2", dedup_id="y"))
        await receipts(client, 1)

        await client.send(send(Q, "3", "r3", dedup_id="z"))
        await receipts(client, 1)

        assert node.mesh_parts.dedup_query.asked <= 2


async def test_what_came_while_a_node_had_no_link_is_asked_about_until_its_links_have_caught_up(
    autojump_clock: Any,
) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        node = rig.nodes["b"]
        assert not node.broker.dedup.is_behind
        isolate(rig, "b")
        await eventually(lambda: node.broker.dedup.is_behind)

        rejoin(rig, "b")

        await eventually(lambda: not node.broker.dedup.is_behind)


# What two nodes have recorded


async def record_twice(rig: MeshRig, late: str = "b") -> None:
    """The first attempts of two messages at `late`, which has no link, and then their retries at another node."""
    isolate(rig, late)
    client, other = await rig.connect(late), await rig.connect("c")
    await client.send(*(send(Q, body, body, dedup_id=body) for body in ("1", "2")))
    assert await receipts(client, 2) == [("1", False), ("2", False)]
    await other.send(*(again(Q, body, body, body) for body in ("1", "2")))
    assert await receipts(other, 2) == [("1", False), ("2", False)]


async def until_equal(rig: MeshRig) -> None:
    nodes = list(rig.nodes.values())
    await eventually(
        lambda: all(node.engine.path.durable_vector() == nodes[0].engine.path.durable_vector() for node in nodes)
    )


@pytest.mark.parametrize("consumer", ["a", "b", "c"])
async def test_what_two_nodes_have_recorded_apart_is_processed_once(consumer: str, autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c", mesh={"receipt_degrade_seconds": 0.1}).run() as rig:
        await record_twice(rig)
        rejoin(rig, "b")
        await until_equal(rig)

        assert sorted(await consumed(await rig.connect(consumer))) == [b"1", b"2"]


async def test_what_a_killed_node_had_alone_is_processed_once_when_it_is_back(autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c", mesh={"receipt_degrade_seconds": 0.1}).run() as rig:
        await record_twice(rig)
        await rig.kill("b")
        rejoin(rig, "b")
        await rig.start("b")

        # Not `until_equal`: the consumer is there before the node has its links.
        assert sorted(await consumed(await rig.connect("b"))) == [b"1", b"2"]


async def test_a_first_attempt_whose_retry_was_recorded_before_a_start_is_processed_once(autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c", mesh={"receipt_degrade_seconds": 0.1}).run() as rig:
        await record_twice(rig)
        with patch.object(FirstAttempts, "is_superseded", lambda *_: False):
            rejoin(rig, "b")
            await until_equal(rig)
            await rig.kill("b")
        await rig.start("b")

        assert sorted(await consumed(await rig.connect("a"))) == [b"1", b"2"]


async def test_a_first_attempt_whose_retry_was_processed_is_no_dead_letter_when_it_expires(autojump_clock: Any) -> None:
    policy = DestinationPolicy(pattern=Q, dead_letter="/queue/late")
    settings = DestinationSettings(policies=(policy,))
    async with MeshRig("a", "b", "c", mesh={"receipt_degrade_seconds": 0.1}, destinations=settings).run() as rig:
        isolate(rig, "b")
        client, other = await rig.connect("b"), await rig.connect("c")
        await client.send(send(Q, "1", "1", dedup_id="1", ttl="60000"))
        await other.send(again(Q, "1", "1", "1"))
        assert await receipts(client, 1) == await receipts(other, 1) == [("1", False)]
        consumer = await rig.connect("c")
        assert await consumed(consumer) == [b"1"]
        consumer.pipe.close()
        with patch.object(FirstAttempts, "is_superseded", lambda *_: False):
            rejoin(rig, "b")
            await until_equal(rig)
            await rig.nodes["b"].engine.checkpoints.checkpoint()
            await rig.kill("b")
        await rig.start("b")
        await rig.until_linked()
        node = rig.nodes["b"]
        await eventually(lambda: not node.broker.queues.held)
        await node.engine.checkpoints.checkpoint()

        await trio.sleep(120)

        assert not node.broker.totals.node().dead_lettered
        await node.engine.checkpoints.checkpoint()
        assert node.store.queues.is_empty("b")


async def test_what_a_retired_node_had_recorded_too_is_adopted_by_none(autojump_clock: Any) -> None:
    async with MeshRig("a", "b", "c", mesh={"receipt_degrade_seconds": 0.1}).run() as rig:
        await record_twice(rig)
        with patch.object(FirstAttempts, "is_superseded", lambda *_: False):
            rejoin(rig, "b")
            await until_equal(rig)
            await rig.stop("b")
        await retire(await rig.connect("a"), "b")

        assert sorted(await consumed(await rig.connect("c"))) == [b"1", b"2"]


async def test_a_consumer_reads_that_a_message_was_tried_again_and_no_client_says_so_itself(
    autojump_clock: Any,
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(again(Q, "1", "r", "x"), send(Q, "2", "s", dedup_id="y", dedup_retry="true"))
        await receipts(client, 2)
        await client.send(subscribe(Q, id="all"))

        heads = [(await client.next("MESSAGE")).head.headers for _ in range(2)]

        assert [head.get("dedup-retry") for head in heads] == ["true", None]
