"""The clients at work: stomp.py as anybody has it, and the Python client of the project; all write the history.

stomp.py's publishers send again what had no answer and do not name their attempts, so a message may stand twice; the
Python client names them, and resumes by itself.
"""

import threading
import traceback
from collections import deque
from collections.abc import Sequence

import trio

import qmq.client
from qmq.errors import Refused
from tests.nemesis.history import History
from tests.support.cluster_client import Client, Message
from tests.support.cluster_work import RETRY_SECONDS, Consumer, Follower, Worker

BEATS_MS = (1000, 1000)
UNANSWERED_MAX = 200
"""Messages out without a receipt; then a publisher waits."""


class Names:
    """The nodes by the addresses that clients know."""

    def __init__(self, nodes: dict[tuple[str, int], str]) -> None:
        self._nodes = nodes

    def of(self, client: Client) -> str:
        return self._nodes[client.address]


class StompPublisher(Worker):
    """Sends numbered bodies, `rate` a second, until `enough`; then until each has its receipt."""

    def __init__(
        self,
        history: History,
        names: Names,
        addresses: Sequence[tuple[str, int]],
        destination: str,
        name: str,
        rate: float,
    ) -> None:
        super().__init__(addresses, BEATS_MS)
        self.destination = destination
        self.enough = threading.Event()
        self.may_begin = threading.Event()
        self.may_begin.set()
        self._history = history
        self._names = names
        self._name = name
        self._pause_seconds = 1 / rate
        self._begun = 0
        self._out: deque[tuple[str, bytes]] = deque()
        self._again: deque[bytes] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether all that was begun is receipted."""
        return not self._out and not self._again

    def serve(self, client: Client) -> None:
        try:
            while not self.stopping.is_set():
                self._harvest(client)
                if client.ended.is_set():
                    return
                body = self._next()
                if body is None:
                    if self.enough.is_set() and self.is_idle:
                        self.stopping.set()
                    client.ended.wait(RETRY_SECONDS)
                    continue
                self._out.append(("", body))  # should the connection end in `send`, it has no receipt
                self._history.send(self.destination, body)
                self._out[-1] = (client.send(self.destination, body, receipt=True), body)
                self.stopping.wait(self._pause_seconds)
        finally:
            self._harvest(client)
            self._again.extendleft(body for _, body in reversed(self._out))
            self._out.clear()

    def _next(self) -> bytes | None:
        if len(self._out) >= UNANSWERED_MAX:
            return None
        if self._again:
            return self._again.popleft()
        if self.enough.is_set() or not self.may_begin.is_set():
            return None
        self._begun += 1
        return f"{self._name} {self._begun}".encode()

    def _harvest(self, client: Client) -> None:
        """Note the receipts that have come; those of one connection come in order."""
        while self._out and self._out[0][0] in client.receipts:
            _, body = self._out.popleft()
            self._history.receipt(self.destination, body, self._names.of(client))


class StompConsumer(Consumer):
    """Takes messages of a queue at one node."""

    def __init__(self, history: History, names: Names, address: tuple[str, int], destination: str) -> None:
        super().__init__([address], destination, BEATS_MS)
        self._history = history
        self._names = names

    def _take(self, client: Client, message: Message) -> None:
        self._history.receive(
            self.destination, f"consumers of {self.destination}", message.body, self._names.of(client)
        )
        client.acknowledge(message)


class StompFollower(Follower):
    """Follows a fanout with the vector of what it has seen."""

    def __init__(
        self, history: History, names: Names, addresses: Sequence[tuple[str, int]], destination: str, reader: str
    ) -> None:
        super().__init__(addresses, destination, BEATS_MS)
        self._history = history
        self._names = names
        self._reader = reader
        self._seen: set[str] = set()

    def _take(self, client: Client, message: Message) -> None:
        super()._take(client, message)
        is_repeat = message.id in self._seen
        self._seen.add(message.id)
        node = self._names.of(client)
        self._history.receive(self.destination, self._reader, message.body, node, is_repeat=is_repeat)


class PythonClient(threading.Thread):
    """The project's client: publishes to a fanout and follows it, over whatever happens to nodes."""

    def __init__(
        self, history: History, addresses: Sequence[tuple[str, int]], destination: str, name: str, rate: float
    ) -> None:
        super().__init__(daemon=True)
        self.destination = destination
        self.enough = threading.Event()
        self.may_begin = threading.Event()
        self.may_begin.set()
        self.stopping = threading.Event()
        self.failure = ""
        self._nodes = [f"{host}:{port}" for host, port in addresses]
        self._history = history
        self._name = name
        self._pause_seconds = 1 / rate
        self._unanswered = 0

    @property
    def is_idle(self) -> bool:
        return self._unanswered == 0

    def run(self) -> None:
        try:
            trio.run(self._work)
        except Exception:
            self.failure = traceback.format_exc()

    def finish(self, seconds: float = 30.0) -> None:
        """End the thread; raises when it had failed."""
        self.stopping.set()
        self.join(seconds)
        assert not self.is_alive(), f"{self} did not end"
        assert not self.failure, self.failure

    async def _work(self) -> None:
        beat_seconds = BEATS_MS[0] / 1000
        async with qmq.client.connect(self._nodes, beat_seconds=beat_seconds, redial_seconds_max=1.0) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow, client)
                nursery.start_soon(self._publish, client, nursery)
                while not self.stopping.is_set():  # noqa: ASYNC110  # set by another thread
                    await trio.sleep(RETRY_SECONDS)
                nursery.cancel_scope.cancel()

    async def _publish(self, client: qmq.client.Client, nursery: trio.Nursery) -> None:
        number = 0
        while not self.enough.is_set():
            await trio.sleep(self._pause_seconds)
            if self.may_begin.is_set() and self._unanswered < UNANSWERED_MAX:
                number += 1
                self._unanswered += 1
                nursery.start_soon(self._send, client, f"{self._name} {number}".encode())

    async def _send(self, client: qmq.client.Client, body: bytes) -> None:
        self._history.send(self.destination, body, is_named=True)
        while True:
            try:
                await client.send(self.destination, body)
                break
            except Refused:  # a full disk; another node, or this one later, has room
                await trio.sleep(RETRY_SECONDS)
        self._history.receipt(self.destination, body, "the Python client")
        self._unanswered -= 1

    async def _follow(self, client: qmq.client.Client) -> None:
        async with client.subscribe(self.destination) as messages:
            async for message in messages:
                self._history.receive(self.destination, "the Python client", message.body, "the Python client")
