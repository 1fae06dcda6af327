"""Takes: what they get, what goes back, and what ends them. Messages are durable when the test says so."""

from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.sessions import pull_consumer
from qmq.sessions.pull_consumer import TURN_TAKES, Begin, PullConsumer
from tests.broker.rig import JOBS, Client, Node, check_accounts, envelope

OTHER = "/queue/other"


class Taker:
    """A session that takes, on a node whose disk syncs when `sync` is called, or at once."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.node = Node()
        self.client = Client(self.node)
        self.is_slow = is_slow
        self.pending: list[list[Delivery]] = []
        self.peers: list[str] = []
        self.stood_still = False
        engine = SimpleNamespace(broker=self.node.broker, environment=self, path=self, deadlines=self)
        self.pull = PullConsumer(engine, self, self.client.id)  # type: ignore[arg-type]

    def followers(self) -> list[str]:
        return self.peers

    def now_us(self) -> int:
        return self.node.now_us

    def decided(self) -> None:
        pass

    def check(self) -> None:
        if self.stood_still:
            self.stood_still = False
            self.decide(self.node.queues.hold)

    def decide(self, change: Callable[[Outcome], None]) -> None:
        out = Outcome(now_us=self.node.now_us)
        change(out)
        self.submit(out)

    def submit(self, out: Outcome) -> None:
        self.node.broker.finish(out, self.node.now_us)
        for told in (out.deliveries_now, out.deliveries_after):
            self.pending += told.values()
        if not self.is_slow:
            self.sync()

    def sync(self) -> None:
        pending, self.pending = self.pending, []
        for deliveries in pending:
            self.pull.delivered(self.node.queues.start_ack_timeouts(deliveries, self.node.now_us))

    def send(self, *bodies: bytes, queue: str = JOBS) -> None:
        for body in bodies:
            out = Outcome(now_us=self.node.now_us)
            self.node.broker.send(envelope(queue), body, self.node.now_us, out)
            self.submit(out)

    def begin(self, queue: str = JOBS) -> Begin:
        subscription = self.client.subscribe(id=queue, credit=0, destination=queue)
        subscription.is_pull = True
        return partial(_begun, subscription)

    async def take(self, *begins: Begin, count: int = 1, seconds: float = 0.0) -> list[bytes]:
        return [one.message.body for one in await self.pull.take(begins, count, seconds)]


async def _begun(subscription: Subscription | None) -> Subscription | None:
    return subscription


async def test_a_take_has_as_many_messages_as_it_asks_for_and_no_later_one(autojump_clock: MockClock) -> None:
    taker = Taker()
    begin = taker.begin()
    taker.send(b"1", b"2", b"3")

    assert await taker.take(begin, count=2) == [b"1", b"2"]

    taker.send(b"4")
    assert taker.node.ready() == [b"3", b"4"]
    assert await taker.take(begin, count=9) == [b"3", b"4"]
    check_accounts(taker.node)


async def test_a_take_of_what_is_there_needs_no_turn_of_another_task_but_gives_one_now_and_then() -> None:
    taker = Taker()
    begin = taker.begin()
    taker.send(*[b"%d" % number for number in range(4 * TURN_TAKES)])
    turns: list[int] = []
    taken: list[bytes] = []
    asked: list[bool] = []

    async def until_left() -> None:
        asked.append(True)

    async def other() -> None:
        while len(taken) < 4 * TURN_TAKES:
            turns.append(len(taken))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(4 * TURN_TAKES):
            taken += [one.message.body for one in await taker.pull.take([begin], 1, 60, until_left)]

    assert taken == [b"%d" % number for number in range(4 * TURN_TAKES)]
    assert 1 < len(turns) <= 4
    assert not asked, "the client is watched only while it waits"


async def test_of_two_queues_the_first_one_that_has_a_message_gives_it(autojump_clock: MockClock) -> None:
    taker = Taker()
    begins = [taker.begin(), taker.begin(OTHER)]
    taker.send(b"2", queue=OTHER)
    assert await taker.take(*begins) == [b"2"]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_later, partial(_send_both, taker))
        first = await taker.take(*begins, seconds=60)
    second = await taker.take(*begins)

    assert {*first, *second} == {b"a", b"b"}
    check_accounts(taker.node)


async def test_what_is_not_durable_in_time_goes_back_unseen(autojump_clock: MockClock) -> None:
    taker = Taker(is_slow=True)
    begin = taker.begin()
    taker.send(b"1")

    assert await taker.take(begin) == []
    assert taker.node.ready() == [b"1"]
    taker.sync()

    taker.is_slow = False
    (delivery,) = await taker.pull.take([begin], 1, 0.0)
    assert delivery.message.attempts == 0


async def test_what_is_decided_in_time_is_waited_for_if_that_is_asked(autojump_clock: MockClock) -> None:
    taker = Taker(is_slow=True)
    begin = taker.begin()
    taker.send(b"1")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_later, taker.sync)
        (delivery,) = await taker.pull.take([begin], 1, 0.0, waits_for_commit=True)

    assert delivery.message.body == b"1"
    assert trio.current_time() >= 5


@pytest.mark.parametrize("how", ["cancelled", "left"])
async def test_a_take_without_a_caller_takes_nothing(autojump_clock: MockClock, how: str) -> None:
    taker = Taker()
    begin = taker.begin()
    left: Callable[[], Awaitable[None]] = partial(trio.sleep, 5)

    with trio.move_on_after(5 if how == "cancelled" else 60) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_later, partial(taker.send, b"1"), 4.999)
            assert await taker.pull.take([begin], 2, 60, left if how == "left" else None) == []

    assert scope.cancelled_caught is (how == "cancelled")
    assert taker.node.ready() == [b"1"]
    assert await taker.take(begin) == [b"1"]
    check_accounts(taker.node)


async def test_a_take_waits_a_moment_for_more_but_not_for_its_whole_time(autojump_clock: MockClock) -> None:
    taker = Taker()
    begin = taker.begin()
    taker.send(b"1")

    assert await taker.take(begin, count=2, seconds=60) == [b"1"]

    assert trio.current_time() < 1


async def test_a_take_waits_on_when_another_node_may_serve_what_has_come(autojump_clock: MockClock) -> None:
    taker = Taker()
    begin = taker.begin()
    taker.send(b"1")

    async with trio.open_nursery() as nursery:
        taker.stood_still = True  # since the message came, and while the take waits a moment for more

        @nursery.start_soon
        async def release() -> None:
            await trio.sleep(30)
            assert taker.node.queues.held
            taker.decide(taker.node.queues.release_hold)

        assert await taker.take(begin, count=2, seconds=60) == [b"1"]

    assert trio.current_time() > 30
    check_accounts(taker.node)


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_take_that_may_not_wait_waits_for_peers_only(autojump_clock: MockClock, is_alone: bool) -> None:
    taker = Taker()
    taker.node.queues.get(JOBS).is_counted = True
    taker.peers = [] if is_alone else ["b"]
    began = trio.current_time()

    assert await taker.take(taker.begin()) == []

    assert (trio.current_time() > began) is not is_alone


async def test_a_take_has_no_more_bytes_than_its_caller_can_hold(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_consumer, "TAKEN_BYTES_MAX", 3)
    taker = Taker()
    begin = taker.begin()
    taker.send(b"ab", b"cd", b"efgh")

    assert [await taker.take(begin, count=9) for _ in range(3)] == [[b"ab"], [b"cd"], [b"efgh"]]


async def test_a_take_that_is_interrupted_or_stopped_ends_at_once(autojump_clock: MockClock) -> None:
    taker = Taker()
    begin = taker.begin()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_later, taker.pull.interrupt)
        assert await taker.take(begin, seconds=60) == []
    assert trio.current_time() < 6

    taker.pull.stop()
    assert await taker.take(begin, seconds=60) == []
    assert trio.current_time() < 6


async def test_one_that_is_released_ends_when_nothing_of_it_is_in_flight(autojump_clock: MockClock) -> None:
    taker = Taker()
    begin = taker.begin()
    taker.send(b"1", b"2")
    (delivery,) = await taker.pull.take([begin], 1, 0.0)
    subscription = delivery.subscription

    taker.pull.release(subscription)
    assert (subscription in taker.node.queues.by_name[JOBS].subscriptions, subscription.closed) == (False, False)

    taker.pull.resume(subscription)
    assert await taker.take(begin) == [b"2"]
    taker.pull.release(subscription)
    taker.node.decide(partial(taker.node.broker.settle, list(subscription.in_flight.values())))
    taker.pull.reap()
    assert subscription.closed
    check_accounts(taker.node)


def _send_both(taker: Taker) -> None:
    taker.is_slow = True
    taker.send(b"a")
    taker.send(b"b", queue=OTHER)
    taker.is_slow = False
    taker.sync()


async def _later(action: Callable[[], object], seconds: float = 5) -> None:
    await trio.sleep(seconds)
    action()
