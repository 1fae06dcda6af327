"""What a client that does nothing shares with all others stays empty, whatever any of them does."""

from trio.testing import MockClock

from qmq.broker.consumers import session as of_broker
from qmq.gateways import subscribe_frames
from qmq.protocols.stomp import dialogue
from qmq.sessions.clients import session
from qmq.wire.stomp import partial_frame
from tests.node.rig import Rig, send, subscribe

SHARED = {
    "transactions": of_broker.NO_TRANSACTIONS,
    "late ACKs": of_broker.NONE_LATE,
    "bound queues": subscribe_frames.NONE_BOUND,
    "frames": dialogue.NONE_RECEIVED,
    "deliveries": session.NOTHING_UNSETTLED,
    "bytes": partial_frame.NOTHING,
}


async def test_clients_that_use_everything_leave_nothing_to_others(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        for number in range(2):
            client = await rig.connect()
            await client.send(subscribe("/queue/q", ack="client-individual", **{"ack-timeout": "1"}))
            await client.receipt()
            await client.send("BEGIN\ntransaction:t\n\n", send("/queue/q", "one", transaction="t"))
            await client.send("COMMIT\ntransaction:t\nreceipt:c\n\n")
            await client.receipt()
            await client.send(send("/queue/q", "two", f"r{number}", **{"dedup-id": "d", "redelivered": "true"}))
            await client.receipt()
            taken = await client.next("MESSAGE")
            late = await client.next("MESSAGE")
            await client.send(f"ACK\nid:{taken.head.headers['ack']}\n\n")
            await rig.alive.engine.path.flushed()
            assert await client.next("MESSAGE")
            await client.send(f"ACK\nid:{late.head.headers['ack']}\n\n")
            await client.pipe.send_all(b"SEND\ndestination:/queue/q\ncontent-length:9\n\nhalf")
            await rig.alive.engine.path.flushed()

        assert not any(SHARED.values()), SHARED
