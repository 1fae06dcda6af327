"""Topic messages for subscriptions with a selector, a bounded part in each turn of the event loop.

Evaluation cost is counted (`Selector.cost`). What an Outcome causes beyond TURN_COST waits in a line of its
subscriber's session, and one task serves these lines in turn. So costly selectors delay their own client, and other
clients by at most one turn. A session with a line gets all its topics through it, so the order of its messages stays.
Plain subscribers of other sessions never wait.

The session that caused the cost decides nothing more before it is done (`delivered`), and neither does a link. A
disconnected session keeps its place among the connections until then. That bounds what can wait.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from qmq.broker.consumers.light_subscriptions import Subscriber
from qmq.broker.consumers.outcome import TURN_COST, Outcome, TopicRun
from qmq.broker.messages.message import Message
from qmq.broker.selectors import Selector, select_within
from qmq.errors import Refused
from qmq.sessions.clients.session import ClientSession

SEND_COST = 5
"""The additional cost of one delivery, in the same unit."""

log = logging.getLogger("qmq.selector_turns")


Deliver = Callable[[TopicRun, Selector | None], None]
"""Puts messages into the outboxes of subscribers; the messages match the selector."""


class _Share:
    """The deliveries of one run of messages to subscriptions of one session; `at` is the first not evaluated.

    `subscribers` are those that still wait, the last one first. `asker` is the session that sent the messages, 0 for
    links and the node itself.
    """

    __slots__ = ("asker", "at", "subscribers", "is_retained", "messages")

    def __init__(
        self, asker: int, messages: list[Message], at: int, is_retained: bool, subscribers: list[Subscriber]
    ) -> None:
        self.asker = asker
        self.messages = messages
        self.at = at
        self.is_retained = is_retained
        self.subscribers = subscribers[::-1]


@dataclass(eq=False, repr=False)
class SelectorTurns:
    """`deliver` and `flush` are for the dispatcher; `spawn` runs a task in the node."""

    _sessions: dict[int, ClientSession]
    _deliver: Deliver
    _flush: Callable[[], None]
    _spawn: Callable[[Callable[[], object]], None]

    def __post_init__(self) -> None:
        self.behind: dict[ClientSession, deque[_Share]] = {}
        """Sessions that have a line; none of them is empty."""
        self._ready: deque[ClientSession] = deque()
        self._running = False
        # Asker → its shares that wait, and the callbacks for when none is left.
        self._asked: dict[int, int] = {}
        self._hooks: dict[int, Callable[[], None]] = {}
        self._progress = trio.lowlevel.ParkingLot()

    def deliver(self, out: Outcome) -> None:
        """Deliver the topic messages of `out` up to the cost TURN_COST; the task delivers the others later. The caller
        flushes.
        """
        left = TURN_COST
        for run in out.topic_runs:
            left = self._send_run(run, out.session, left)

    async def delivered(self, asker: int) -> None:
        """Wait until everything caused by `asker` is delivered. No checkpoint when it is."""
        while asker in self._asked:
            await self._progress.park()

    def after_delivery(self, asker: int, do: Callable[[], None]) -> None:
        """Call `do` when everything caused by `asker` is delivered; now, if it is."""
        if asker in self._asked:
            self._hooks[asker] = do
        else:
            do()

    def _send_run(self, run: TopicRun, asker: int, left: int) -> int:
        messages = run.messages
        is_retained = run.retained
        # Each selector is evaluated once for all subscriptions that have the same.
        groups: dict[Selector | None, list[Subscriber]] = {}
        late: dict[ClientSession, list[Subscriber]] = {}
        for subscriber in run.subscriptions:
            session = self._sessions.get(subscriber.session)
            if session is None:
                continue
            if session in self.behind:
                late.setdefault(session, []).append(subscriber)
            else:
                groups.setdefault(subscriber.selector, []).append(subscriber)
        partly: list[tuple[Subscriber, int]] = []
        for selector, group in groups.items():
            if selector is None:
                self._deliver(TopicRun(tuple(group), messages, is_retained), None)
                continue
            wanted: list[Message] = []
            at, selector_cost = select_within(selector, messages, 0, left, wanted)
            left -= selector_cost
            if wanted:
                self._deliver(TopicRun(tuple(group), wanted, is_retained), selector)
            if at:
                partly += [(subscriber, at) for subscriber in group if at < len(messages)]
            else:
                for subscriber in group:
                    late.setdefault(self._sessions[subscriber.session], []).append(subscriber)
        for subscriber, at in partly:
            self._wait(self._sessions[subscriber.session], _Share(asker, messages, at, is_retained, [subscriber]))
        for session, subscribers in late.items():
            self._wait(session, _Share(asker, messages, 0, is_retained, subscribers))
        return left

    def _wait(self, session: ClientSession, share: _Share) -> None:
        self._asked[share.asker] = self._asked.get(share.asker, 0) + 1
        line = self.behind.get(session)
        if line is None:
            line = self.behind[session] = deque()
            self._ready.append(session)
        line.append(share)
        if not self._running:
            self._running = True
            self._spawn(self._run)

    async def _run(self) -> None:
        """Never raises Exception: an error ends only the subscriber's session."""
        while self._ready:
            await trio.lowlevel.checkpoint()
            left = TURN_COST
            while self._ready and left > 0:
                session = self._ready.popleft()
                try:
                    left -= self._serve(session, self.behind[session], left)
                except Exception:
                    log.exception("! %s: the selectors of its subscribers cannot be evaluated", session.id)
                    session.evict(Refused("not-selected", "The selector cannot be evaluated now; try again later."))
                if self.behind[session]:
                    self._ready.append(session)
                else:
                    del self.behind[session]
            self._flush()
        self._running = False

    def _serve(self, session: ClientSession, line: deque[_Share], cost_max: int) -> int:
        """Deliver to `session` the next of its line, up to the cost `cost_max`; returns the actual cost."""
        spent = 0
        while line and spent < cost_max:
            share = line[0]
            if session.finishing or session.id not in self._sessions:
                share.subscribers = []
            while share.subscribers and spent < cost_max:
                subscriber = share.subscribers[-1]
                selector = subscriber.selector
                messages = share.messages[share.at :] if share.at else share.messages
                at = len(messages)
                spent += SEND_COST
                if selector is not None and not subscriber.closed:
                    wanted: list[Message] = []
                    at, selector_cost = select_within(selector, messages, 0, cost_max - spent, wanted)
                    spent += selector_cost
                else:
                    wanted = messages
                if wanted:
                    self._deliver(TopicRun((subscriber,), wanted, share.is_retained), selector)
                if at < len(messages):
                    # The others have not been evaluated for these yet.
                    share.subscribers.pop()
                    line.appendleft(_Share(share.asker, share.messages, share.at + at, share.is_retained, [subscriber]))
                    self._asked[share.asker] += 1
                    share = line[0]
                else:
                    share.subscribers.pop()
            if not share.subscribers:
                line.popleft()
                spent += 1
                self._done(share.asker)
        return spent

    def _done(self, asker: int) -> None:
        self._asked[asker] -= 1
        if not self._asked[asker]:
            del self._asked[asker]
            hook = self._hooks.pop(asker, None)
            if hook is not None:
                hook()
            self._progress.unpark_all()
