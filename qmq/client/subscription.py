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

    def __init__(self, client: Subscriber, feed: Feed) -> None:
        self._client = client
        self._feed = feed
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
        """On return a node has the subscription. Raises Refused, NotConnected; cancelled, nothing is left behind."""
        client, feed = self._client, self._feed
        self._is_entered = True
        client.core.subscribe(feed)
        client.runner.wake()
        try:
            await client.runner.checkpoint()
            while not feed.opened and feed.error is None:
                await client.runner.changed(feed)
        except BaseException:
            self.end()
            raise
        if feed.error is not None:
            raise feed.error

    def end(self) -> None:
        """Messages that are not settled go back to their queue. Idempotent."""
        self._client.core.unsubscribe(self._feed)
        self._client.runner.wake()

    async def next(self, timeout_seconds: float) -> Delivered | None:
        """The next message, None once the subscription was left. Raises as `Subscription.receive`."""
        if not self._is_entered:
            raise not_entered("a subscription", self.BLOCK)
        return await self._client.runner.limited(timeout_seconds, self._next())

    async def _next(self) -> Delivered | None:
        client, feed = self._client, self._feed
        await client.runner.checkpoint()
        while True:
            delivery = client.core.take(feed)
            if delivery is not None:
                client.runner.wake()
                return delivery
            if feed.error is not None:
                raise feed.error
            if feed.state is FeedState.ENDED:
                return None
            await client.runner.changed(feed)


class Subscription(Reading):
    """Made by `Client.subscribe`. Subscribed inside its `async with`, whatever happens to nodes meanwhile.

    Iteration waits for the next message; it ends only with an exception, because a subscription has no last message.
    Several tasks may iterate over one subscription: each message goes to one of them.
    """

    def __init__(self, client: Subscriber, feed: Feed, confirm: bool) -> None:
        super().__init__(client, feed)
        self._confirm = confirm

    async def __aenter__(self) -> "Subscription":
        """On return a node has the subscription. Raises Refused, NotConnected; cancelled, nothing is left behind."""
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
            NotConnected: the client was closed or has given up, or the subscription was left.
        """
        delivery = await self.next(timeout_seconds)
        if delivery is None:
            raise NotConnected("the subscription was left")
        return Message(self._client, delivery, self._confirm)

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Message:
        """As `receive`, without a time limit; the iteration ends once the subscription was left."""
        delivery = await self.next(math.inf)
        if delivery is None:
            raise StopAsyncIteration
        return Message(self._client, delivery, self._confirm)
