"""A broker for dramatiq: its actors as jobs in queues of a mesh, and a backend for their results. Needs the extra
`dramatiq` (docs/dramatiq.md).

The mesh does what other brokers leave to workers: a delayed message waits in the nodes and not in a worker, and what an
actor has failed at for good is a dead letter of the mesh. Retries, groups and pipelines are dramatiq's own.

Surprising: there are no delay queues, so `before_delay_message` of a middleware is never called.
"""

import json
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Unpack

import dramatiq
from dramatiq import Broker as DramatiqBroker
from dramatiq.encoder import Encoder
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound
from dramatiq.message import Message
from dramatiq.middleware import Middleware
from dramatiq.results import ResultBackend, ResultTimeout
from dramatiq.results.backend import DEFAULT_TIMEOUT, Missing

from qmq.client import blocking
from qmq.client.options import ConnectOptions
from qmq.client.process_client import ProcessClient
from qmq.errors import NotConnected, Refused, Stale

JOIN_SECONDS = 0.05
"""Between two looks at a queue that is joined."""

log = logging.getLogger("qmq.dramatiq")


@contextmanager
def _errors_of_dramatiq() -> Iterator[None]:
    """A node that does not respond is a ConnectionClosed."""
    try:
        yield
    except (NotConnected, TimeoutError) as error:
        raise ConnectionClosed(f"no node has confirmed it: {error}") from error


class QmqBroker(DramatiqBroker):
    """Connects on first use, in each process. `addresses` and `options` are those of `qmq.client.blocking.connect`.

    The queue of an actor is `/queue/PREFIX` with its name. A call that waits for a node waits `timeout_seconds`, and
    then raises dramatiq's ConnectionClosed.
    """

    def __init__(
        self,
        addresses: str | Iterable[str],
        *,
        middleware: list[Middleware] | None = None,
        prefix: str = "dramatiq.",
        timeout_seconds: float = 30.0,
        **options: Unpack[ConnectOptions],
    ) -> None:
        super().__init__(middleware)
        self.queues: dict[str, None] = {}
        self.actor_options |= {"broker_priority"}
        self._prefix = prefix
        self.timeout_seconds = timeout_seconds
        connect: ConnectOptions = {"connect_timeout_seconds": timeout_seconds, **options}
        self._connected = ProcessClient(addresses, **connect)

    @property
    def client(self) -> blocking.Client:
        """The client of this process, another one if it has given up. Raises ConnectionClosed, Refused."""
        with _errors_of_dramatiq():
            return self._connected.client

    def close(self) -> None:
        self._connected.close()

    def declare_queue(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """On return a node has confirmed it. The actor option `broker_priority` is the priority: 0 to 9, 9 goes first.

        Raises ConnectionClosed, QueueNotFound, and Refused, such as for a queue that is full.
        """
        destination = self._destination(message.queue_name)
        headers = {"content-type": "application/json", "dramatiq-actor": message.actor_name}
        if delay is not None:
            headers["delay"] = str(max(int(delay), 0))
        if (priority := message.options.get("broker_priority")) is not None:
            headers["priority"] = str(priority)
        self.emit_before("enqueue", message, delay)
        self.send(destination, message.encode(), headers)
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> dramatiq.Consumer:
        """Raises ConnectionClosed, too, when no node has the subscription within `timeout_seconds`."""
        destination = self._destination(queue_name)
        with _errors_of_dramatiq():
            subscription = self.client.subscribe(destination, prefetch=prefetch, timeout_seconds=self.timeout_seconds)
            return QmqConsumer(subscription, timeout / 1000)

    def flush(self, queue_name: str) -> None:
        """Drop what waits in a queue, on all nodes. Needs the right to operate it."""
        self._ask("purge", self._destination(queue_name), {})

    def flush_all(self) -> None:
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until the queue is empty and no worker has a message of it, delayed ones included; for tests."""
        end = None if timeout is None else time.monotonic() + timeout / 1000
        while self.count(self._destination(queue_name)):
            if end is not None and time.monotonic() > end:
                raise QueueJoinTimeout(queue_name)
            time.sleep(JOIN_SECONDS)

    def _destination(self, queue_name: str) -> str:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        return f"/queue/{self._prefix}{queue_name}"

    def send(self, destination: str, body: bytes, headers: dict[str, str]) -> None:
        """On return a node has confirmed it. Raises ConnectionClosed, Refused."""
        with _errors_of_dramatiq():
            self.client.send(destination, body, headers, timeout_seconds=self.timeout_seconds)

    def count(self, destination: str) -> int:
        """Messages of a queue on all nodes that respond, in flight included. Raises ConnectionClosed, Refused."""
        return int(self._ask("count-msgs", destination, {"scope": "mesh"})["num_messages"])

    def _ask(self, verb: str, destination: str, options: dict[str, str]) -> Any:
        """What an administrative request responds."""
        request = f"/control/{verb}{destination}"
        with _errors_of_dramatiq():
            answer = self.client.request(request, b"", options, timeout_seconds=self.timeout_seconds)
        return json.loads(answer.body)


class QmqConsumer(dramatiq.Consumer):
    """Prefetches up to `prefetch` messages; they return to their queue when it is closed."""

    def __init__(self, subscription: blocking.Subscription, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._opened = ExitStack()
        self._messages = self._opened.enter_context(subscription)

    def __next__(self) -> "QmqMessage | None":
        try:
            received = self._messages.receive(timeout_seconds=self._timeout_seconds)
        except TimeoutError:
            return None
        except NotConnected as error:
            raise ConnectionClosed(str(error)) from error
        try:
            return QmqMessage(Message.decode(received.body), received)
        except DecodeError:
            log.exception("! %s is no message of dramatiq: it becomes a dead letter", received.id)
            received.nack(requeue=False)
            return None

    def ack(self, message: dramatiq.MessageProxy) -> None:
        self._settle(message, is_ack=True)

    def nack(self, message: dramatiq.MessageProxy) -> None:
        """It becomes a dead letter."""
        self._settle(message, is_ack=False)

    def _settle(self, message: dramatiq.MessageProxy, *, is_ack: bool) -> None:
        assert isinstance(message, QmqMessage)
        try:
            message.received.ack() if is_ack else message.received.nack(requeue=False)
        except (Stale, Refused, NotConnected) as error:
            # The connection that brought it is gone: it is delivered again, and nothing can be done about it here.
            log.warning("! message %s may be processed again: %s", message.message_id, error)

    def close(self) -> None:
        self._opened.close()


class QmqMessage(dramatiq.MessageProxy):
    """A message of an actor, with how it came."""

    def __init__(self, message: Message[Any], received: blocking.Message) -> None:
        super().__init__(message)
        self.received = received


class QmqResults(ResultBackend):
    """Results of actors, for the middleware `Results`: each is the message of a queue of its own, and expires.

    Its queue is `/queue/NAMESPACE.KEY`. A result is stored as a message of the broker is: with three nodes on two
    disks. Any node finds it; reading leaves it there. Of two results of one message, the first stays.
    """

    def __init__(
        self,
        broker: QmqBroker,
        *,
        namespace: str = "dramatiq-results",
        encoder: Encoder | None = None,
        use_namespace_prefix_keys: bool = False,
    ) -> None:
        super().__init__(namespace=namespace, encoder=encoder, use_namespace_prefix_keys=use_namespace_prefix_keys)
        self._broker = broker

    def get_result(self, message: Message[Any], *, block: bool = False, timeout: int | None = None) -> Any:
        """The result, within `timeout` ms if `block`, without polling.

        Raises ResultMissing, ResultTimeout, ResultFailure with the actor's exception, ConnectionClosed, Refused.
        """
        if not block:
            return super().get_result(message)
        destination = self._destination(self.build_message_key(message))
        result = self._received(destination, (DEFAULT_TIMEOUT if timeout is None else timeout) / 1000)
        if result is Missing:
            raise ResultTimeout(message)
        return self.unwrap_result(result)

    def _get(self, message_key: str) -> Any:
        destination = self._destination(message_key)
        if not self._broker.count(destination):
            return Missing
        return self._received(destination, self._broker.timeout_seconds)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        headers = {"content-type": "application/json", "ttl": str(max(int(ttl), 1))}
        self._broker.send(self._destination(message_key), self.encoder.encode(result), headers)

    def _destination(self, message_key: str) -> str:
        return f"/queue/{self.namespace}.{message_key}"

    def _received(self, destination: str, seconds: float) -> Any:
        """The first message of the queue, which returns to it unsettled at the end of the subscription."""
        try:
            subscription = self._broker.client.subscribe(destination, prefetch=1, timeout_seconds=seconds)
            with subscription as messages:
                return self.encoder.decode(messages.receive(timeout_seconds=seconds).body)
        except TimeoutError:
            return Missing
        except NotConnected as error:
            raise ConnectionClosed(str(error)) from error
