"""The messages of one destination as an iterator that survives the death of nodes."""

import math
from types import TracebackType
from typing import Protocol

from qmq.client.blocks import not_entered
from qmq.client.core.feed import Delivered, Feed, FeedState
from qmq.client.message import Message, Settler
from qmq.client.runner import Runner
from qmq.errors import NotConnected


class Subscriber(Settler, Protocol):
    """What a subscription needs from its client."""

    @property
    def runner(self) -> Runner: ...


class Reading:
    """A subscription in every style of program: what is done with its feed."""

    BLOCK = "async with"

    def __init__(self, client: Subscriber, feed: Feed, timeout_seconds: float) -> None:
        self._client = client
        self._feed = feed
        self._timeout_seconds = timeout_seconds
        self._is_entered = False

    @property
    def destination(self) -> str:
        return self._feed.destination

    @property
    def position(self) -> str:
        """Fanouts: how far the messages that were handed out go. Keep it together with what was made of them, and a
        later `subscribe(..., start=position)`, on any node, goes on exactly after them.
        """
        return str(self._feed.handed)

    @property
    def dropped(self) -> int:
        """Topics with `overflow="drop-oldest"`: messages that were dropped because no task took them."""
        return self._feed.dropped

    async def begin(self) -> None:
        """On return a node has the subscription. Raises Refused, NotConnected, TimeoutError; after that, and if it is
        cancelled, nothing is left behind.
        """
        await self._client.runner.limited(self._timeout_seconds, self._begin())

    async def _begin(self) -> None:
        client, feed = self._client, self._feed
        self._is_entered = True
        client.core.subscribe(feed)
        client.runner.wake()
        try:
            await client.runner.checkpoint()
            while not (feed.opened or feed.error or feed.is_stopped):
                await client.runner.changed(feed)
        except BaseException:
            self.end()
            raise
        if feed.error is not None:
            raise feed.error

    def stop(self) -> None:
        """Take no more messages: iteration ends, also where a task or thread waits for the next one, and `receive`
        raises NotConnected. What was handed out is settled as before. The rest returns to its queue at the end of the
        block. Idempotent. Not for handlers of signals in a program of threads: there it may wait for itself.
        """
        self._client.core.stop(self._feed)
        self._client.runner.wake()

    def end(self) -> None:
        """Messages that are not settled go back to their queue. Idempotent."""
        self._client.core.unsubscribe(self._feed)
        self._client.runner.wake()

    async def next(self, timeout_seconds: float) -> Delivered | None:
        """The next message, None once the subscription was stopped or left. Raises as `Subscription.receive`."""
        if not self._is_entered:
            raise not_entered("a subscription", self.BLOCK)
        return await self._client.runner.limited(timeout_seconds, self._next())

    async def _next(self) -> Delivered | None:
        client, feed = self._client, self._feed
        await client.runner.checkpoint()
        while not feed.is_stopped:
            delivery = client.core.take(feed)
            if delivery is not None:
                client.runner.wake()
                return delivery
            if feed.error is not None:
                raise feed.error
            if feed.state is FeedState.ENDED:
                break
            await client.runner.changed(feed)
        return None


def ended() -> NotConnected:
    """What `receive` raises when no message comes any more."""
    return NotConnected("the subscription was stopped or left")


class Subscription(Reading):
    """Made by `Client.subscribe`. Subscribed inside its `async with`, whatever happens to nodes meanwhile.

    Iteration waits for the next message. It ends with an exception or by `stop`, as a subscription has no last message.
    Several tasks may iterate over one subscription: each message goes to one of them.
    """

    def __init__(self, client: Subscriber, feed: Feed, confirm: bool, timeout_seconds: float) -> None:
        super().__init__(client, feed, timeout_seconds)
        self._confirm = confirm

    async def __aenter__(self) -> "Subscription":
        """On return a node has the subscription. Raises Refused, NotConnected, and TimeoutError after the
        `timeout_seconds` of `subscribe`. After an error, or a cancel, nothing is left behind.
        """
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Never waits. Messages that are not settled go back to their queue."""
        self.end()

    async def receive(self, *, timeout_seconds: float = math.inf) -> Message:
        """The next message; a cancelled call takes none.

        Raises:
            TimeoutError: none came within `timeout_seconds`.
            Refused: a node refuses to go on with the subscription (after messages that came before that).
            Overrun: a topic's messages were not taken in time, and some are missed (likewise).
            NotConnected: the client was closed or has given up, or the subscription was stopped or left.
        """
        delivery = await self.next(timeout_seconds)
        if delivery is None:
            raise ended()
        return Message(self._client, delivery, self._confirm)

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Message:
        """As `receive`, without a time limit; the iteration ends once the subscription was stopped or left."""
        delivery = await self.next(math.inf)
        if delivery is None:
            raise StopAsyncIteration
        return Message(self._client, delivery, self._confirm)
