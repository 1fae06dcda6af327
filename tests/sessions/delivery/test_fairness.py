"""One busy client does not keep the others from their turn."""

import socket
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, Subscription
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope
from qmq.engine.runtime.sockets import SocketPipe
from qmq.sessions.clients.outbox import ClientOutbox
from qmq.sessions.clients.session import READ_BYTES_MAX, ClientSession
from tests.node.rig import Rig, eventually


class EndlessOutbox(ClientOutbox):
    """Whatever is put is with the kernel at once, as over loopback to a quick reader."""

    def put(self, data: bytes) -> None:
        """Gone."""


async def test_a_long_memory_queue_is_drained_in_steps_that_let_others_in(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        node = rig.alive
        await rig.connect()
        (session,) = node.sessions.values()
        session.outbox = EndlessOutbox(session.outbox.pipe, session)
        envelope = Envelope("/queue/q", DestinationKind.QUEUE, b"", durable=False)
        out = Outcome()
        for _ in range(20_000):
            node.broker.send(envelope, b"x", 0, out)
        node.broker.subscriptions.subscribe(Subscription(session.id, "0", "/queue/q", Ack.AUTO, 100, b""), out)
        queue = node.broker.queues.by_name["/queue/q"]

        node.engine.path.submit(out)

        assert 15_000 < queue.depth < 20_000
        await eventually(lambda: queue.depth == 0)


PIECE_BYTES = 2048
"""Of a read of READ_BYTES_MAX, to be quick: how many bytes a turn may take is one question, how many turns another."""

LOGIN = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"


class Turns:
    """How often anybody has been read from."""

    def __init__(self) -> None:
        self.count = 0


class BusyPipe:
    """A client that always has more to say: each read brings more of the same frames, until `turns_max` of all."""

    peer_address = "10.0.0.1"
    peer_port = 50_000
    peer_certificate_names: frozenset[str] = frozenset()

    def __init__(self, frame: bytes, turns: Turns, turns_max: int) -> None:
        self._text = frame * (1 + 2 * PIECE_BYTES // len(frame))
        self._frame_bytes = len(frame)
        self._rest = LOGIN
        self._turns = turns
        self._turns_max = turns_max
        self._at = 0
        self.answered: Callable[[bytes], None] = lambda data: None

    async def receive_some(self, bytes_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if self._rest:
            data, self._rest = self._rest, b""
            return data
        assert bytes_max == READ_BYTES_MAX
        self._turns.count += 1
        if self._turns.count > self._turns_max:
            return b""
        data = self._text[self._at : self._at + PIECE_BYTES]
        self._at = (self._at + PIECE_BYTES) % self._frame_bytes
        return data

    def send_now(self, data: bytes) -> int:
        self.answered(data)
        return len(data)

    async def send_all(self, data: bytes) -> None:
        self.answered(data)

    def end_sending(self) -> None: ...

    def close(self) -> None: ...


class QuietPipe(BusyPipe):
    """One that says a frame now and then, and notes how many reads of others its answer has taken."""

    def __init__(self, frame: bytes, turns: Turns, turns_max: int, apart: int) -> None:
        super().__init__(frame, turns, turns_max)
        self._frame = frame
        self._asked_at = -1
        self._apart = apart
        self.waits: list[int] = []
        self.answered = self._note

    async def receive_some(self, bytes_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if self._rest:
            data, self._rest = self._rest, b""
            return data
        begin = self._turns.count
        while self._turns.count < begin + self._apart:
            if self._turns.count >= self._turns_max:
                return b""
            await trio.lowlevel.checkpoint()
        # What stands in the socket now is read at the next turn of this client, as the others' is.
        self._asked_at = self._turns.count
        await trio.lowlevel.checkpoint()
        return self._frame

    def _note(self, data: bytes) -> None:
        if data.startswith(b"RECEIPT"):
            self.waits.append(self._turns.count - self._asked_at)


@pytest.mark.parametrize("busy", [1, 4, 16])
@pytest.mark.parametrize("rate", [1, 4])
@pytest.mark.parametrize(
    "frame",
    [
        b"SEND\ndestination:/topic/t\n\nx\0",
        b"SEND\ndestination:/queue/q\npersistent:false\nreceipt:r\n\n%b\0" % bytes(b"x" * 1000),
        b"BEGIN\ntransaction:t\n\n\0ABORT\ntransaction:t\n\n\0",
        b"\n",
    ],
)
async def test_a_busy_client_is_read_twice_at_most_while_another_waits_for_its_answer(
    autojump_clock: MockClock, frame: bytes, busy: int, rate: int
) -> None:
    turns = Turns()
    turns_max = 60 * busy
    quiet = QuietPipe(b"SEND\ndestination:/topic/other\nreceipt:q\n\nx\0", turns, turns_max, apart=4 * busy // rate)
    async with Rig().run() as rig:
        stomp, host = rig.alive.protocols.of("stomp"), rig.alive.session_parts.host
        async with trio.open_nursery() as nursery:
            for pipe in [quiet, *[BusyPipe(frame, turns, turns_max) for _ in range(busy)]]:
                login = rig.alive.session_parts.login_path.admission.admit(pipe.peer_address)
                nursery.start_soon(ClientSession(host, pipe, rig.settings.stomp[0], login, stomp).serve)

    assert len(quiet.waits) > 5
    assert max(quiet.waits) <= 2 * busy


async def test_reading_a_socket_that_is_always_full_lets_others_have_as_many_turns() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        theirs.send(bytes(100_000))
        pipe = SocketPipe(ours, "here")
        others = 0

        async def count() -> None:
            nonlocal others
            while True:
                others += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await trio.lowlevel.checkpoint()
            assert len(await pipe.receive_some(500)) == 500  # in the turn with which its task begins
            for _ in range(100):
                assert len(await pipe.receive_some(500)) == 500
            nursery.cancel_scope.cancel()

    assert others >= 100
