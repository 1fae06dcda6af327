"""The messages of one destination as an async iterator that survives the death of nodes."""

from types import TracebackType
from typing import Protocol

import trio

from qmq.client.feed import Feed, FeedState
from qmq.client.message import Message, Settler
from qmq.client.runner import Runner


class Subscriber(Settler, Protocol):
    """What a subscription needs from its client."""

    @property
    def runner(self) -> Runner: ...


class Subscription:
    """Made by `Client.subscribe`. Subscribed inside its `async with`, whatever happens to nodes meanwhile.

    Iteration waits for the next message; it ends only with an exception, because a subscription has no last message.
    Several tasks may iterate over one subscription: each message goes to one of them.
    """

    def __init__(self, client: Subscriber, feed: Feed, confirm: bool) -> None:
        self._client = client
        self._feed = feed
        self._confirm = confirm

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

    async def __aenter__(self) -> "Subscription":
        """On return a node has the subscription. Raises Refused, NotConnected; cancelled, nothing is left behind."""
        client, feed = self._client, self._feed
        client.core.subscribe(feed)
        client.runner.wake()
        try:
            await trio.lowlevel.checkpoint()
            while not feed.opened and feed.error is None:
                await client.runner.changed(feed)
        except BaseException:
            self._leave()
            raise
        if feed.error is not None:
            raise feed.error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Never waits. Messages that are not settled go back to their queue."""
        self._leave()

    def _leave(self) -> None:
        self._client.core.unsubscribe(self._feed)
        self._client.runner.wake()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Message:
        """The next message; a cancelled call takes none.

        Raises:
            Refused: a node refuses to go on with the subscription (after messages that came before that).
            Overrun: a topic's messages were not taken in time, and some are missed (likewise).
            NotConnected: the client was closed or has given up.
        """
        client, feed = self._client, self._feed
        await trio.lowlevel.checkpoint()
        while True:
            delivery = client.core.take(feed)
            if delivery is not None:
                client.runner.wake()
                return Message(client, delivery, self._confirm)
            if feed.error is not None:
                raise feed.error
            if feed.state is FeedState.ENDED:
                raise StopAsyncIteration
            await client.runner.changed(feed)
