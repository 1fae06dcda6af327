"""The clients at work: stomp.py as anybody has it, and the Python client of the project; all write the history.

stomp.py's publishers send again what had no answer and do not name their attempts, so a message may stand twice; the
Python client names them, and resumes by itself.
"""

import math
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import trio

import qmq.client
from qmq.errors import Refused
from tests.nemesis.history import UNKNOWN, History
from tests.support.cluster_client import Client, Message
from tests.support.cluster_work import RETRY_SECONDS, Consumer, Follower, Worker

BEATS_MS = (1000, 1000)
UNANSWERED_MAX = 200
"""Messages out without a receipt; then a publisher waits."""
COPIES = 2
"""Disks that a receipt of the default level stands for, in a mesh of three or more."""
TICK_SECONDS = 0.01
IN_HAND = 10
"""Messages of one consumer; few, so that it is known of most when they were handed out."""


class Names:
    """The nodes by the addresses that clients know."""

    def __init__(self, nodes: Mapping[tuple[str, int], str]) -> None:
        self._nodes = nodes

    def of(self, client: Client) -> str:
        return self._nodes[client.address]

    def at(self, address: str | None) -> str:
        """By `host:port`; UNKNOWN where there is none."""
        host, _, port = (address or "").rpartition(":")
        return self._nodes.get((host, int(port or 0)), UNKNOWN)


class StompPublisher(Worker):
    """Sends numbered bodies, `rate` a second, until `enough`; then until each has its receipt.

    `replicas` asks for a level of its own: so many disks beside the one of the node. The messages are those of so many
    `groups`, in turns.
    """

    def __init__(
        self,
        history: History,
        names: Names,
        addresses: Sequence[tuple[str, int]],
        destination: str,
        name: str,
        rate: float,
        replicas: int | None = None,
        groups: int = 0,
    ) -> None:
        super().__init__(addresses, BEATS_MS)
        self._groups = groups
        self.destination = destination
        self.enough = threading.Event()
        self._level = {"receipt-level": f"replicas={replicas}"} if replicas else {}
        self._copies = replicas + 1 if replicas else COPIES
        self._history = history
        self._names = names
        self._name = name
        self._pause_seconds = 1 / rate
        self._begun = 0
        self._client: Client | None = None
        self._out: deque[tuple[str, bytes]] = deque()
        self._again: deque[bytes] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether all that was begun is receipted."""
        return not self._out and not self._again

    @property
    def state(self) -> str:
        """For a failure: what it waits for, and where."""
        place = "no connection" if self._client is None else f"{self._names.of(self._client)} {self._client.said_last}"
        return (
            f"{self._name} at {place}: {len(self._out)} without a receipt, {list(self._out)[:3]}, {self._again} again"
        )

    def serve(self, client: Client) -> None:
        self._client = client
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
                asked = {**self._level, **self._group_of(body)}
                self._out[-1] = (client.send(self.destination, body, receipt=True, **asked), body)
                self.stopping.wait(self._pause_seconds)
        finally:
            self._harvest(client)
            self._again.extendleft(body for _, body in reversed(self._out))
            self._out.clear()
            self._client = None

    def _group_of(self, body: bytes) -> dict[str, str]:
        return {"JMSXGroupID": f"g{int(body.split()[-1]) % self._groups}"} if self._groups else {}

    def _next(self) -> bytes | None:
        if len(self._out) >= UNANSWERED_MAX:
            return None
        if self._again:
            return self._again.popleft()
        if self.enough.is_set():
            return None
        self._begun += 1
        return f"{self._name} {self._begun}".encode()

    def _harvest(self, client: Client) -> None:
        """Note the receipts that have come; those of one connection come in order."""
        while self._out and self._out[0][0] in client.receipts:
            receipt, body = self._out.popleft()
            copies = int(client.receipts[receipt].get("copies", self._copies))
            self._history.receipt(self.destination, body, self._names.of(client), copies)


class StompConsumer(Consumer):
    """Takes messages of a queue at one node after the other, works on each for a moment, and asks for a receipt of its
    ACK, at `level`. So a node that goes away finds consumers with messages in hand.

    A message was handed out after the consumer had subscribed, and after room for it was made: the n-th one after the
    ACK of the one IN_HAND before it was sent.
    """

    def __init__(
        self,
        history: History,
        names: Names,
        addresses: Sequence[tuple[str, int]],
        destination: str,
        level: str,
        work: Callable[[], float],
        stay: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`work` says how many seconds a message takes, `stay` how many it is at a node before it goes to the next one
        without a word."""
        super().__init__(addresses, destination, BEATS_MS)
        self._work = work
        self._stay = stay
        self._level = level
        self._history = history
        self._names = names
        # From when on the next messages can have been handed out, and those in hand with when they are done.
        self._since: deque[float] = deque()
        self._in_hand: deque[tuple[float, Message]] = deque()
        self._asked: dict[str, Message] = {}
        self._lock = threading.Lock()

    @property
    def reader(self) -> str:
        return f"consumers of {self.destination}"

    def serve(self, client: Client) -> None:
        self._since = deque([self._history.now] * IN_HAND)
        self._in_hand.clear()
        self._asked = {}
        client.on_answer = lambda headers: self._hear(client, headers)
        headers = {"prefetch-count": str(IN_HAND)}
        client.subscribe(self.destination, ack="client-individual", on_message=self._take, headers=headers)
        until = self._history.now + self._stay()
        while not (client.ended.is_set() or self.stopping.is_set()) and self._history.now < until:
            while self._in_hand and self._in_hand[0][0] <= self._history.now:
                self._acknowledge(client, self._in_hand.popleft()[1])
            client.ended.wait(TICK_SECONDS)

    def _take(self, client: Client, message: Message) -> None:
        try:
            since = self._since.popleft()
            node = self._names.of(client)
            self._history.receive(
                self.destination,
                self.reader,
                message.body,
                node,
                message.id,
                since=since,
                group=message.headers.get("JMSXGroupID", ""),
                is_marked=message.is_redelivered,
            )
            self._in_hand.append((self._history.now + self._work(), message))
        except Exception:  # stomp.py, whose thread this is, would keep it to itself
            self.failure = traceback.format_exc()

    def _acknowledge(self, client: Client, message: Message) -> None:
        self._since.append(self._history.now)
        with self._lock:  # its receipt may come at once
            receipt = client.acknowledge(message, receipt=True, ack_level=self._level)
            self._asked[receipt] = message

    def _hear(self, client: Client, headers: Mapping[str, str]) -> None:
        with self._lock:
            message = self._asked.pop(headers["receipt-id"], None)
        if message is not None:
            for_good = self._level == "quorum" and "ack-level" not in headers
            node = self._names.of(client)
            self._history.receipt_of_ack(self.reader, message.body, node, message.id, for_good=for_good)


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
        self._history.receive(self.destination, self._reader, message.body, node, message.id, is_repeat=is_repeat)


class PythonClient(threading.Thread):
    """The project's client: publishes to a fanout and follows it, over whatever happens to nodes."""

    READER = "the Python client"

    def __init__(
        self,
        history: History,
        names: Names,
        addresses: Sequence[tuple[str, int]],
        destination: str,
        name: str,
        rate: float,
    ) -> None:
        super().__init__(daemon=True)
        self.destination = destination
        self.enough = threading.Event()
        self.stopping = threading.Event()
        self.failure = ""
        self._names = names
        self._nodes = [f"{host}:{port}" for host, port in addresses]
        self._history = history
        self._name = name
        self._pause_seconds = 1 / rate
        self._unanswered = 0
        self._client: qmq.client.Client | None = None

    @property
    def is_idle(self) -> bool:
        return self._unanswered == 0

    @property
    def state(self) -> str:
        """For a failure: what it waits for, and where."""
        told = "not begun" if self._client is None else str(self._client.statistics())
        return f"{self._name}: {self._unanswered} without a receipt; {told}"

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
            self._client = client
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
            if self._unanswered < UNANSWERED_MAX:
                number += 1
                self._unanswered += 1
                nursery.start_soon(self._send, client, f"{self._name} {number}".encode())

    async def _send(self, client: qmq.client.Client, body: bytes) -> None:
        self._history.send(self.destination, body, is_named=True)
        while True:
            try:
                receipt = await client.send(self.destination, body)
                break
            except Refused:  # a full disk; another node, or this one later, has room
                await trio.sleep(RETRY_SECONDS)
        copies = COPIES if receipt.copies is None else receipt.copies
        again = receipt.is_duplicate
        self._history.receipt(self.destination, body, self._node(client), copies, is_duplicate=again)
        self._unanswered -= 1

    async def _follow(self, client: qmq.client.Client) -> None:
        async with client.subscribe(self.destination) as messages:
            async for message in messages:
                if not message.gap:
                    node = self._node(client)
                    self._history.receive(self.destination, self.READER, message.body, node, message.id)

    def _node(self, client: qmq.client.Client) -> str:
        """Where it is logged in: whence the message or receipt came that was taken just now, but for a lost moment."""
        return self._names.at(client.statistics().node)
