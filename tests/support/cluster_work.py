"""Clients that go on whatever happens to their node: what a careful user of a mesh would write.

Each is a thread. What they promise is what the mesh promises: a Publisher counts a message as sent when its receipt
came, a Consumer as done when it has it, a Follower resumes its stream where it stood. They never fail by themselves;
`failure` tells what ended one early, and `finish` raises it in the test.
"""

import math
import threading
import traceback
from collections.abc import Iterable, Sequence

from .cluster_client import Client, LostError, Message
from .cluster_wait import eventually

WINDOW = 100
"""Messages out without a receipt."""
RETRY_SECONDS = 0.05


class Worker(threading.Thread):
    """The thread around a connection that comes back; `serve` is one connection's life."""

    def __init__(self, addresses: Sequence[tuple[str, int]], heartbeats: tuple[int, int] = (0, 0)) -> None:
        """`heartbeats` in ms, ours and the node's; without them a node that stands still is waited for."""
        super().__init__(daemon=True)
        self.addresses = list(addresses)
        self.heartbeats = heartbeats
        self.failure = ""
        self.stopping = threading.Event()
        self.connections = 0

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._one_connection()
        except Exception:
            self.failure = traceback.format_exc()

    def finish(self, seconds: float = 30.0) -> None:
        """End the thread; raises when it had failed."""
        self.stopping.set()
        self.join(seconds)
        assert not self.is_alive(), f"{self} did not end"
        assert not self.failure, self.failure

    def serve(self, client: Client) -> None:
        """Work until done or until the connection ends; LostError is how it may end."""
        raise NotImplementedError

    def _one_connection(self) -> None:
        address = self.addresses[self.connections % len(self.addresses)]
        self.connections += 1
        client = None
        try:
            client = Client(address, heartbeats=self.heartbeats)
            self.serve(client)
        except LostError:
            self.stopping.wait(RETRY_SECONDS)
        finally:
            if client is not None:
                client.drop()


class Publisher(Worker):
    """Sends `bodies` in order and keeps at most WINDOW without a receipt; on a lost connection it sends again, at the
    next address, what was not receipted. So a body may arrive twice, and one that is receipted must never be missing.

    `bodies` may be endless: `enough` ends them. Of each publisher no more than `allowed` are begun, so that a test can
    hold the stream until it has done its worst in the middle of it.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        destination: str,
        bodies: Iterable[bytes],
        allowed: float = math.inf,
        heartbeats: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(addresses, heartbeats)
        self.destination = destination
        self.allowed = allowed
        self.receipted: list[bytes] = []
        self._bodies = iter(bodies)
        self._begun = 0
        self._again: list[bytes] = []
        self._enough = False

    def serve(self, client: Client) -> None:
        out: list[tuple[str, bytes]] = []
        try:
            while not self.stopping.is_set():
                while len(out) < WINDOW and (body := self._next()) is not None:
                    out.append(("", body))  # should the connection end in `send`, it counts as not receipted
                    out[-1] = (client.send(self.destination, body, receipt=True), body)
                if not out:
                    if self._enough:
                        self.stopping.set()
                    client.ended.wait(RETRY_SECONDS)
                    if client.ended.is_set():
                        return
                    continue
                half = out[: max(len(out) // 2, 1)]
                client.wait_receipts([receipt for receipt, _ in half])
                self.receipted += [body for _, body in half]
                del out[: len(half)]
        finally:
            self.receipted += [body for receipt, body in out if receipt in client.receipts]
            self._again = [body for receipt, body in out if receipt not in client.receipts] + self._again

    @property
    def is_idle(self) -> bool:
        """Whether all that was begun is receipted."""
        return len(self.receipted) == self._begun

    def goes_on(self, more: int = 300) -> None:
        """Wait until there are so many receipts more than now."""
        wanted = len(self.receipted) + more
        eventually(
            lambda: len(self.receipted) >= wanted or self.failure,
            lambda: f"{self.destination}: stands still at {len(self.receipted)} receipts, {wanted} were due",
        )
        assert not self.failure, self.failure

    def enough(self) -> None:
        """Begin no more; those that were begun are still brought to their receipts."""
        self._enough = True

    def wait(self, seconds: float = 60.0) -> None:
        """Until every body is receipted."""
        eventually(
            lambda: not self.is_alive(), lambda: f"{self.destination}: {len(self.receipted)} receipted, no end", seconds
        )
        self.finish()

    def _next(self) -> bytes | None:
        if self._again:
            return self._again.pop(0)
        if self._enough or self._begun >= self.allowed:
            return None
        body = next(self._bodies, None)
        if body is None:
            self._enough = True
        else:
            self._begun += 1
        return body


class Consumer(Worker):
    """Takes messages of a queue, acknowledging each by itself."""

    def __init__(
        self, addresses: Sequence[tuple[str, int]], destination: str, heartbeats: tuple[int, int] = (0, 0)
    ) -> None:
        super().__init__(addresses, heartbeats)
        self.destination = destination
        self.bodies: list[bytes] = []

    def serve(self, client: Client) -> None:
        client.subscribe(
            self.destination, ack="client-individual", on_message=self._take, headers={"prefetch-count": "50"}
        )
        while not (client.ended.is_set() or self.stopping.is_set()):
            client.ended.wait(RETRY_SECONDS)

    def _take(self, client: Client, message: Message) -> None:
        self.bodies.append(message.body)
        client.acknowledge(message)


class Follower(Worker):
    """Reads a fanout from its beginning and resumes with its vector, so that it sees each message once."""

    def __init__(
        self, addresses: Sequence[tuple[str, int]], destination: str, heartbeats: tuple[int, int] = (0, 0)
    ) -> None:
        super().__init__(addresses, heartbeats)
        self.destination = destination
        self.bodies: list[bytes] = []
        self.ids: list[str] = []
        self.vector: dict[str, int] = {}

    def serve(self, client: Client) -> None:
        resume = ",".join(f"{origin}={sequence}" for origin, sequence in self.vector.items())
        client.subscribe(
            self.destination,
            on_message=self._take,
            headers={"qmq-resume": resume} if resume else {"x-stream-offset": "first"},
        )
        while not (client.ended.is_set() or self.stopping.is_set()):
            client.ended.wait(RETRY_SECONDS)

    def _take(self, client: Client, message: Message) -> None:
        self.bodies.append(message.body)
        self.ids.append(message.id)
        origin, _, sequence = message.id.rpartition("-")
        self.vector[origin] = max(int(sequence), self.vector.get(origin, 0))
