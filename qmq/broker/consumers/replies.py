"""Request and reply: queues of one session, and the way back to them from anywhere in the mesh.

A session knows its temporary queues by names of its own (`/temp-queue/answers`). Other clients know them by a
**reply address** that this node makes up (`/reply-queue/NODE-INCARNATION.SESSION.KEY.NUMBER`), so that names of
different clients never meet: the gateway writes it into `reply-to`. The key is random and drawn at login, so an address
is known only to clients that were given it, and each of these may use it.

A temporary queue is its subscription and nothing more. A reply is sent to the session at once or not at all; it never
waits for a consumer, is never stored, and never sent twice. What bounds it is what bounds topic messages: the
session's outbox. When the subscription ends, its address ends with it; a new one gets another address.
"""

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.session import ClientState
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.messages.totals import NodeTotals
from qmq.errors import Refused
from qmq.model.dots import Origin, parse_origin

REPLY_PREFIX = "/reply-queue/"


class ReplyQueue:
    """One temporary queue. `is_implicit`: made by a `reply-to`, so a SUBSCRIBE may take it over."""

    __slots__ = ("address", "is_implicit", "key", "name", "session", "subscriptions")

    def __init__(self, session: int, name: str, key: str, address: str, subscription: Subscription) -> None:
        self.session = session
        self.name = name
        self.key = key
        self.address = address
        self.subscriptions = (subscription,)
        self.is_implicit = False


class Replies:
    """The temporary queues of this node's sessions, and the peers to which replies can go.

    `peers` and `relayed` are kept by the links: the origins that can be reached now, directly and through another node.
    """

    def __init__(self, origin: Origin, subscriptions_max: int, totals: NodeTotals) -> None:
        self.peers: frozenset[Origin] = frozenset()
        self.relayed: frozenset[Origin] = frozenset()
        self.dropped = 0
        """Replies that no client waits for any more, or whose node cannot be reached."""
        self._origin = origin
        self._totals = totals
        self.subscriptions_max = subscriptions_max
        self._by_name: dict[tuple[int, str], ReplyQueue] = {}
        self._by_key: dict[str, ReplyQueue] = {}
        self._made = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, session_id: int, name: str) -> ReplyQueue | None:
        """The session's temporary queue of that name."""
        return self._by_name.get((session_id, name))

    def subscribe(self, session: ClientState, subscription: Subscription, *, is_implicit: bool = False) -> ReplyQueue:
        """Make the temporary queue `subscription.destination`, or take over the one that a `reply-to` made.

        Raises Refused, with nothing changed: it has a SUBSCRIBE already, the id is in use, or there are too many.
        """
        name = subscription.destination
        queue = self._by_name.get((session.id, name))
        old = None if queue is None or not queue.is_implicit else queue.subscriptions[0]
        is_mine = old is not None and session.subscriptions.get(subscription.id) is old
        if (queue is not None and old is None) or (session.is_taken(subscription.id) and not is_mine):
            raise Refused(
                "duplicate-subscription", "This connection already has a subscription with that id or temporary queue."
            )
        if old is None and session.subscribed >= self.subscriptions_max:
            raise Refused("too-many-subscriptions", f"A connection has at most {self.subscriptions_max} subscriptions.")
        if queue is None:
            self._made += 1
            key = f"{session.id}.{session.key:016x}.{self._made}"
            queue = ReplyQueue(session.id, name, key, f"{REPLY_PREFIX}{self._origin}.{key}", subscription)
            self._by_name[session.id, name] = queue
            self._by_key[key] = queue
        elif old is not None:
            old.closed = True
            del session.subscriptions[old.id]
            queue.subscriptions = (subscription,)
        queue.is_implicit = is_implicit
        session.subscriptions[subscription.id] = subscription
        return queue

    def end(self, subscription: Subscription) -> None:
        """The subscription has ended, and its queue with it."""
        queue = self._by_name.pop((subscription.session, subscription.destination))
        del self._by_key[queue.key]

    def check(self, address: str) -> None:
        """Refuse a reply of which it is known here that no client will get it."""
        origin, key = _parse(address)
        if origin == self._origin:
            if key not in self._by_key:
                raise Refused("unknown-destination", "No client waits for this reply any more.")
        elif origin not in self.peers and origin not in self.relayed:
            raise Refused("unknown-destination", f"Node {origin.node} of this address cannot be reached, or restarted.")

    def send(self, message: Message, out: Outcome, *, is_of_client: bool = True) -> None:
        """A client of this node, or the node itself, sends a reply: hand it to the session, or to the node that has it.

        What the node itself says is no message to the totals.
        """
        origin, key = _parse(message.envelope.destination)
        if origin == self._origin:
            self._deliver(key, message, out, is_of_client=is_of_client)
        elif origin in self.peers or origin in self.relayed:
            out.peer_replies.setdefault(origin, []).append(message)
        else:
            self.dropped += 1

    def from_peer(self, message: Message, out: Outcome) -> None:
        """A peer hands on a reply to a session of this node."""
        origin, key = _parse(message.envelope.destination)
        if origin == self._origin:
            self._deliver(key, message, out)
        else:
            self.dropped += 1

    def _deliver(self, key: str, message: Message, out: Outcome, *, is_of_client: bool = True) -> None:
        queue = self._by_key.get(key)
        if queue is None:
            self.dropped += 1
            return
        # The session sees the name that it gave, as with every other subscription.
        envelope = Envelope(queue.name, DestinationKind.TEMP, message.envelope.headers, False)
        delivered = Message(envelope, message.body, message.origin, message.sequence, message.timestamp_us)
        out.publish_topic(queue.subscriptions, delivered)
        self._totals.others.delivered += is_of_client
        selector = queue.subscriptions[0].selector
        if selector is not None:
            out.selector_cost += selector.cost_of(len(message.envelope.headers))


def check_address(destination: str) -> None:
    """Refuse what no node has ever made."""
    _parse(destination)


def _parse(address: str) -> tuple[Origin, str]:
    text, _, key = address.removeprefix(REPLY_PREFIX).partition(".")
    try:
        return parse_origin(text), key
    except ValueError:
        raise Refused(
            "bad-destination", f"A reply goes to the address of reply-to, {REPLY_PREFIX}…, unchanged."
        ) from None
