"""The plain subscriptions of one session to topics by their names, as one object.

There may be a million of them on a connection, so such a subscription (ack `auto`, no selector, no buffer, the first
of its session to that topic) is two entries in two dictionaries and nothing else. Whatever asks for more is a
`Subscription`. A topic's subscribers are therefore of two sorts. For this one, the sender of a message looks up the id
by which the client knows the topic.
"""

from typing import Final

from qmq.broker.consumers.buffer import Buffer
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.selectors import Selector

PREFIXES_MAX = 64
"""Of one session: with more such topics than this, few messages of each are expected."""


class LightSubscriptions:
    """What session `session` hears by name: `topics` by the client's id, `ids` by topic.

    `prefixes` is the gateway's, as is that of a Subscription, but remembers at most PREFIXES_MAX topics.
    The other attributes are those of a Subscription that asks for nothing.
    """

    __slots__ = ("ids", "prefixes", "session", "topics")

    closed: Final = False
    """A topic that it has left is not in `ids` any more."""
    selector: Final[Selector | None] = None
    buffer: Final[Buffer | None] = None

    def __init__(self, session: int) -> None:
        self.session = session
        self.topics: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.prefixes: dict[str, bytes] = {}

    def join(self, topic: str, id: str) -> None:
        """Hear `topic` from now on."""
        self.topics[id] = topic
        self.ids[topic] = id

    def leave(self, id: str) -> str:
        """Hear it no more; returns the topic."""
        topic = self.topics.pop(id)
        del self.ids[topic]
        self.prefixes.pop(topic, None)
        return topic

    def end(self) -> None:
        """Hear nothing any more."""
        self.topics, self.ids, self.prefixes = {}, {}, {}


Subscriber = Subscription | LightSubscriptions
"""What gets the messages of a topic."""
