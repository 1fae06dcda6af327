"""Subscriptions of all kinds of destinations: what a client may subscribe to, and what begins and ends with it."""

from collections.abc import Callable

from qmq.broker.consumers.light_subscriptions import LightSubscriptions
from qmq.broker.consumers.outcome import Eviction, Outcome
from qmq.broker.consumers.replies import Replies
from qmq.broker.consumers.session import ClientState
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.fanouts.durable_subscriptions import DurableSubscriptions, taken_over
from qmq.broker.messages.destination import SYSTEM_DESTINATIONS, DestinationKind, check_pattern, is_pattern, kind_of
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.limits import DEFAULT_LIMITS
from qmq.broker.messages.message import Envelope
from qmq.broker.queues.queues import Queues
from qmq.broker.selectors.selector import SelectorCosts, SharedSelectors
from qmq.broker.send_limits import SendLimits
from qmq.broker.topics.router import TopicRouter
from qmq.errors import Refused
from qmq.model.cursors import Name
from qmq.model.dots import Vector


def stopping(why: str = "", others: str = "") -> Refused:
    """Why a node that stops, or drains, serves a client no more: `why` it does, and where the `others` are."""
    return Refused("stopping", f"This node is stopping{why}; the others of its mesh go on{others}.")


class Subscriptions:
    """`have` is what this node has of every origin; `last_sequence` the last of its own."""

    def __init__(
        self,
        sessions: dict[int, ClientState],
        router: TopicRouter,
        queues: Queues,
        replies: Replies,
        durable_subscriptions: DurableSubscriptions,
        have: Callable[[], Vector],
        last_sequence: Callable[[], int],
        is_leaving: Callable[[int], bool],
    ) -> None:
        self._sessions = sessions
        self._router = router
        self._queues = queues
        self._replies = replies
        self._durable_subscriptions = durable_subscriptions
        self._have = have
        self._last_sequence = last_sequence
        self._is_leaving = is_leaving
        self._selectors = SharedSelectors()
        self.fanouts: dict[str, dict[Subscription, None]] = {}
        self.fanout_costs: dict[str, SelectorCosts] = {}
        """What the selectors of a fanout's subscriptions cost together; where it has any."""
        self.watchers: dict[str, dict[Subscription, None]] = {name: {} for name in SYSTEM_DESTINATIONS}
        """Subscriptions to what the node publishes of itself; apart from topics, whose patterns must not match it."""
        self.is_stopping = False
        self.bounds: dict[int, Callable[[], None]] = {}
        """Session → raises Refused when its user or its address may have no more subscriptions; set by the node for
        those with such a limit."""
        self.send_limits = SendLimits(queues, router.retained, self.fanouts, router.topics, DEFAULT_LIMITS)

    def subscribe(self, subscription: Subscription, out: Outcome) -> None:
        """Begin a subscription. Raises Refused for a duplicate id, too many, or a pattern that means nothing."""
        session = self._sessions[subscription.session]
        destination = subscription.destination
        kind = kind_of(destination)
        if kind is DestinationKind.TEMP:
            self.subscribe_replies(subscription)
            return
        send_limits = self.send_limits
        self._check_subscriber(session, subscription.id)
        if is_pattern(destination):
            if kind is not DestinationKind.TOPIC:
                raise Refused("bad-pattern", "Only topics can be subscribed to by a pattern.")
            check_pattern(destination)
        if kind is DestinationKind.CONTROL or kind is DestinationKind.REPLY:
            raise Refused("bad-destination", "Control destinations and reply addresses have no subscribers.")
        if kind is DestinationKind.SYSTEM and destination not in SYSTEM_DESTINATIONS:
            raise Refused(
                "bad-destination", f"The node publishes events and status at {', '.join(SYSTEM_DESTINATIONS)}."
            )
        if not (
            destination in self._router.topics
            or destination in self._queues.by_name
            or destination in self.fanouts
            or destination in send_limits.logged_fanouts
        ):
            send_limits.check_room(destination)
        if subscription.selector is not None:
            self._selectors.check(subscription.selector, send_limits.limits.selector_parts_max)
        if kind is DestinationKind.TOPIC:
            self._router.add(destination, subscription, out)
        if subscription.selector is not None:
            subscription.selector = self._selectors.share(subscription.selector)
        session.subscriptions[subscription.id] = subscription
        session.asked_bytes += subscription.memory_bytes
        if kind is DestinationKind.TOPIC:
            self._router.selecting += subscription.selector is not None
            if self._router.retained.values:
                out.retained_delivery.append((subscription, self._router.retained.change))
        elif subscription.is_browser:
            out.browsers.append(subscription)
        elif kind is DestinationKind.QUEUE:
            self._queues.subscribe(subscription, out)
        elif kind is DestinationKind.SYSTEM:
            self.watchers[destination][subscription] = None
            out.watchers.append(subscription)
        else:
            self.fanouts.setdefault(destination, {})[subscription] = None
            if subscription.selector is not None:
                self.fanout_costs.setdefault(destination, SelectorCosts()).add(subscription.selector)
            subscription.since = self._last_sequence()
            out.joined.append(subscription)

    def count_selecting(self, envelope: Envelope, out: Outcome) -> None:
        """Count what it will cost to select from the messages of `envelope`, to a fanout, for its subscriptions."""
        costs = self.fanout_costs.get(envelope.destination)
        if costs is not None:
            out.selector_cost += costs.of(len(envelope.headers))

    def listen(self, session_id: int, topic: str, id: str, out: Outcome) -> bool:
        """Begin a subscription that asks for nothing, to one topic by its name. Raises Refused as `subscribe`.

        False, with nothing changed, when it needs an object of its own: `subscribe` then.
        """
        session = self._sessions[session_id]
        listener = session.listener
        if self._router.retained.values or (listener is not None and topic in listener.ids):
            return False
        self._check_subscriber(session, id)
        if topic not in self._router.topics:
            self.send_limits.check_room()
        if listener is None:
            listener = session.listener = LightSubscriptions(session_id)
        listener.join(topic, id)
        self._router.add(topic, listener, out)
        return True

    def _check_subscriber(self, session: ClientState, subscription_id: str) -> None:
        if self.is_stopping:
            raise stopping()
        if session.is_taken(subscription_id):
            raise Refused("duplicate-subscription", "This connection already has a subscription with that id.")
        if session.subscribed >= self.send_limits.limits.subscriptions_max:
            raise Refused(
                "too-many-subscriptions",
                f"A connection has at most {self.send_limits.limits.subscriptions_max} subscriptions.",
            )
        self._check_bound(session.id)

    def _check_bound(self, session_id: int) -> None:
        if self.bounds:
            bound = self.bounds.get(session_id)
            if bound is not None:
                bound()

    def subscribe_durable(
        self, subscription: Subscription, name: Name, now_us: int, out: Outcome, user: str = ""
    ) -> None:
        """Begin a subscription of a fanout that continues at the cursor of `name`, and end the one that has it.

        A name that belongs to no user belongs to `user` from then on, unless that is "". Raises Refused as `subscribe`.
        """
        durable_subscriptions = self._durable_subscriptions
        durable_subscriptions.check_attach(name, subscription.session, may_create=not self._queues.is_starting)
        self.subscribe(subscription, out)
        before = durable_subscriptions.attached.get(name)
        if before is not None:
            self.unsubscribe(before.subscription.session, before.subscription.id, out)
            # One whose client has heard its last frame is perhaps this very client, which came back.
            if not self._is_leaving(before.subscription.session):
                why = taken_over(name, "another connection of this node")
                out.evictions.append(Eviction(before.subscription.session, why, before.subscription.id))
        # A slow one waits for its credit, so nothing is ever dropped.
        subscription.buffer = None
        durable_subscriptions.attach(subscription, name, self._have(), now_us, out, user)

    def subscribe_replies(self, subscription: Subscription, *, is_implicit: bool = False) -> str:
        """Begin a subscription to a temporary queue; returns its reply address. Raises Refused."""
        if is_pattern(subscription.destination):
            raise Refused("bad-pattern", "Only topics can be subscribed to by a pattern.")
        session = self._sessions[subscription.session]
        self._check_bound(session.id)
        selector = subscription.selector
        if selector is not None:
            self._selectors.check(selector, self.send_limits.limits.selector_parts_max)
        known = self._replies.find(session.id, subscription.destination)
        bytes_before = 0 if known is None else known.subscriptions[0].memory_bytes
        address = self._replies.subscribe(session, subscription, is_implicit=is_implicit).address
        session.asked_bytes += subscription.memory_bytes - bytes_before
        if selector is not None:
            subscription.selector = self._selectors.share(selector)
        return address

    def unsubscribe(self, session_id: int, subscription_id: str, out: Outcome) -> None:
        """End a subscription; what it has in flight goes back. Raises Refused when there is none."""
        session = self._sessions[session_id]
        listener = session.listener
        if listener is not None and subscription_id in listener.topics:
            self._router.remove(listener.leave(subscription_id), listener, out)
            return
        subscription = session.subscriptions.pop(subscription_id, None)
        if subscription is None:
            raise Refused("unknown-subscription", "This connection has no subscription with that id.")
        self.end(subscription, out, Back.LEFT)

    def end(self, subscription: Subscription, out: Outcome, why: Back) -> None:
        subscription.closed = True
        destination = subscription.destination
        kind = kind_of(destination)
        if subscription.selector is not None:
            self._selectors.release(subscription.selector)
        session = self._sessions.get(subscription.session)
        if session is not None:
            session.asked_bytes -= subscription.memory_bytes
        if kind is DestinationKind.TOPIC:
            self._router.remove(destination, subscription, out)
            self._router.selecting -= subscription.selector is not None
        elif subscription.is_browser:
            pass
        elif kind is DestinationKind.QUEUE:
            self._queues.unsubscribe(subscription, out, why)
        elif kind is DestinationKind.TEMP:
            self._replies.end(subscription)
        elif kind is DestinationKind.SYSTEM:
            del self.watchers[destination][subscription]
        else:
            out.left.append(subscription)
            if subscription.durable is not None:
                self._durable_subscriptions.detach(subscription, out)
            subscriptions = self.fanouts.get(destination, {})
            subscriptions.pop(subscription, None)
            if not subscriptions:
                self.fanouts.pop(destination, None)
                self.fanout_costs.pop(destination, None)
            elif subscription.selector is not None:
                self.fanout_costs[destination].add(subscription.selector, -1)

    def end_all(self, session: ClientState, out: Outcome, why: Back) -> None:
        """The session has ended. All subscriptions close before the first one requeues: another one of the same
        client must not get its messages."""
        for subscription in session.subscriptions.values():
            subscription.closed = True
        for subscription in session.subscriptions.values():
            self.end(subscription, out, why)
        listener = session.listener
        if listener is not None:
            for topic in listener.ids:
                self._router.remove(topic, listener, out)
            listener.end()

    def cease(self, out: Outcome) -> None:
        """From now on no consumer here gets anything; what it has it may still settle. No subscription begins."""
        self.is_stopping = True
        for session in self._sessions.values():
            for subscription in session.subscriptions.values():
                if subscription.durable is not None:
                    subscription.credit = 0
                elif kind_of(subscription.destination) is DestinationKind.QUEUE and not subscription.is_browser:
                    self._queues.cease(subscription, out)

    def resume(self) -> None:
        """Subscriptions begin again."""
        self.is_stopping = False
