"""One busy client does not keep the others from their turn."""

from trio.testing import MockClock

from qmq.broker.destination import Kind
from qmq.broker.message import Envelope
from qmq.broker.outcome import Outcome
from qmq.broker.subscription import Ack, Subscription
from qmq.server.outbox import Outbox
from tests.server.rig import Rig, eventually


class EndlessOutbox(Outbox):
    """Whatever is put is with the kernel at once, as over loopback to a quick reader."""

    def put(self, data: bytes) -> None:
        """Gone."""


async def test_a_long_memory_queue_is_drained_in_steps_that_let_others_in(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        node = rig.alive
        await rig.connect()
        (session,) = node.sessions.values()
        session.outbox = EndlessOutbox(session.outbox._pipe, session.outbox._start)
        envelope = Envelope("/queue/q", Kind.QUEUE, b"", durable=False)
        out = Outcome()
        for _ in range(20_000):
            node.broker.send(envelope, b"x", 0, out)
        node.broker.subscribe(Subscription(session.id, "0", "/queue/q", Ack.AUTO, 100, b""), out)
        queue = node.broker.queues.by_name["/queue/q"]

        node.submit(out)

        assert 15_000 < queue.depth < 20_000
        await eventually(lambda: queue.depth == 0)
