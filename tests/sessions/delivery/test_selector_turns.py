"""Costly selectors are asked in slices: whatever a client sends, one turn of the event loop selects a little only."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from qmq.broker.consumers.outcome import TURN_COST, Outcome, TopicRun
from qmq.broker.consumers.subscription import Ack, Subscription
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.queues.selective.dispatcher import LOOKED_MAX
from qmq.broker.queues.selective.selector_paging import COST_SHARE
from qmq.broker.selectors import Selector, compile_selector
from qmq.errors import Refused
from qmq.model.dots import Origin
from qmq.sessions.delivery.selector_turns import SelectorTurns
from tests.node.rig import Client, Rig, eventually, nothing_more, send, subscribe

TURN_MOST = 2 * TURN_COST + 2_000
"""One turn may decide for a client, which selects up to TURN_TOIL, or follow a group of commits up to twice that."""

TURN_MOST_OF_LONG = TURN_MOST + 2 * 60 * (3 * 4100 // 128)
"""Besides, the last answer may exceed what is left."""


def costly(number: int) -> str:
    """A selector that wants nothing, other than those with other numbers."""
    return " OR ".join(f"nothing LIKE '%a_b{number}%{part}'" for part in range(60))


BYTES_OF_COST = 128
"""That a LIKE reads in about the time that one part of a selector takes."""

LONG = {f"long-{number}": "x" * 4000 for number in range(3)}
"""Headers of which each LIKE may read one."""


class Toil(trio.abc.Instrument):
    """What selecting cost in each step of a task, by counting what selectors are asked, and about how many bytes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = self.most = self.asked = 0
        matches = Selector.matches

        def counted(selector: Selector, properties: dict[str, str]) -> bool:
            header_bytes = sum([len(name) + len(value) for name, value in properties.items()])
            self.now += selector.cost + selector.text.count("LIKE") * (header_bytes // BYTES_OF_COST)
            self.asked += 1
            return matches(selector, properties)

        patch.setattr(Selector, "matches", counted)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most = max(self.most, self.now)
        self.now = 0


@pytest.fixture
def selector_cost(monkeypatch: pytest.MonkeyPatch) -> Toil:
    """Counts from the beginning of the test on; the test adds it to the loop."""
    return Toil(monkeypatch)


async def picky_clients(
    rig: Rig, destination: str, clients: int = 10, selectors: int = 10, **headers: str
) -> list[Client]:
    """Clients with many costly selectors each; the first one of each wants what has the header `want`."""
    found = []
    for number in range(clients):
        client = await rig.connect()
        for index in range(selectors):
            text = f"{costly(number * selectors + index)} OR want = '{'no' if index else 'yes'}'"
            await client.send(subscribe(destination, id=str(index), selector=text, **headers))
            await client.receipt()
        found.append(client)
    return found


Sends = Callable[[Client], Awaitable[None]]


async def one_by_one(sender: Client) -> None:
    for number in range(5):
        await sender.send(send("/topic/t", str(number), want="yes", number=str(number)))


async def all_at_once(sender: Client) -> None:
    await sender.send(*[send("/topic/t", str(number), want="yes", number=str(number)) for number in range(5)])


async def in_a_transaction(sender: Client) -> None:
    frames = [send("/topic/t", str(number), want="yes", number=str(number), transaction="t") for number in range(5)]
    await sender.send("BEGIN\ntransaction:t\n\n", *frames, "COMMIT\ntransaction:t\n\n")


@pytest.mark.parametrize("sends", [one_by_one, all_at_once, in_a_transaction])
async def test_topic_messages_are_selected_in_slices_and_come_in_order(
    selector_cost: Toil, sends: Sends, autojump_clock: MockClock
) -> None:
    async with Rig().run() as rig:
        clients = await picky_clients(rig, "/topic/t")
        sender = await rig.connect()
        trio.lowlevel.add_instrument(selector_cost)

        await sends(sender)

        for client in clients:
            assert await client.messages(5) == [b"0", b"1", b"2", b"3", b"4"]
        await nothing_more(sender)
        assert selector_cost.asked >= 5 * 19
        assert selector_cost.most <= TURN_MOST


@pytest.mark.parametrize("destination", ["/topic/t", "/fanout/f"])
async def test_long_headers_are_selected_in_slices_that_are_as_long(
    selector_cost: Toil, destination: str, autojump_clock: MockClock
) -> None:
    async with Rig().run() as rig:
        clients = await picky_clients(rig, destination, clients=2, selectors=5)
        sender = await rig.connect()
        trio.lowlevel.add_instrument(selector_cost)

        await sender.send(*[send(destination, str(number), want="yes", n=str(number), **LONG) for number in range(5)])

        for client in clients:
            assert await client.messages(5) == [b"0", b"1", b"2", b"3", b"4"]
        assert selector_cost.asked >= 5 * 9
        assert selector_cost.most <= TURN_MOST_OF_LONG


class Stub:
    """As much of a session as selecting needs."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.finishing = False
        self.ended: list[Refused] = []

    def evict(self, error: Refused) -> None:
        self.ended.append(error)
        self.finishing = True


class Told:
    """`SelectorTurns` with sessions that note what they are sent; nothing waits for a socket."""

    def __init__(self, sessions: int) -> None:
        self.sessions = {number: Stub(number) for number in range(1, sessions + 1)}
        self.told: list[tuple[int, bytes]] = []
        self.tasks: list[Callable[[], object]] = []
        self.selecting = SelectorTurns(self.sessions, self._tell, lambda: None, self.tasks.append)  # type: ignore[arg-type]
        self.subscribers: tuple[Subscription, ...] = ()

    def subscribe(self, session: int, selector: str | None) -> Subscription:
        found = Subscription(session, "0", "/topic/t", Ack.AUTO, 0, b"")
        found.selector = None if selector is None else compile_selector(selector)
        self.subscribers += (found,)
        return found

    def send(self, *bodies: bytes, asker: int = 99, to: tuple[Subscription, ...] = ()) -> None:
        """Each in an envelope of its own, all in one Outcome."""
        out = Outcome(asker)
        for body in bodies:
            envelope = Envelope("/topic/t", DestinationKind.TOPIC, b"want:yes\n", False)
            out.publish_topic(to or self.subscribers, Message(envelope, body, Origin("a", 1), -1, 0))
        self.selecting.deliver(out)

    def _tell(self, run: TopicRun, asked: Selector | None) -> None:
        self.told += [(one.session, message.body) for one in run.subscriptions for message in run.messages]

    async def rest(self) -> None:
        """Tell what waits."""
        while self.tasks:
            await self.tasks.pop()()  # type: ignore[misc]  # `spawn` takes tasks without their type

    def heard(self, session: int) -> list[bytes]:
        return [body for number, body in self.told if number == session]


def told_by_many(sessions: int = 40) -> Told:
    """Two costly subscriptions in each session, of which one wants all."""
    rig = Told(sessions)
    for number in range(1, sessions + 1):
        rig.subscribe(number, f"{costly(2 * number)} OR want = 'yes'")
        rig.subscribe(number, costly(2 * number + 1))
    return rig


async def test_plain_subscriber_gets_messages_at_once_and_costly_ones_by_turns() -> None:
    rig = told_by_many()
    rig.sessions[41] = Stub(41)
    rig.subscribe(41, None)

    rig.send(b"1", b"2")

    assert rig.heard(41) == [b"1", b"2"]
    assert rig.selecting.behind and rig.heard(40) == []
    await rig.rest()
    assert all(rig.heard(number) == [b"1", b"2"] for number in rig.sessions)
    assert not rig.selecting.behind


async def test_session_that_waits_hears_its_plain_topics_in_order_too() -> None:
    rig = told_by_many()
    plain = (rig.subscribe(40, None), rig.subscribe(1, None))
    rig.send(b"1", to=rig.subscribers[:-2])

    rig.send(b"2", to=plain, asker=98)

    assert rig.heard(1) == [b"1", b"2"] and rig.heard(40) == []
    await rig.rest()
    assert rig.heard(40) == [b"1", b"2"]


async def test_long_run_for_one_costly_subscription_is_delivered_in_order(selector_cost: Toil) -> None:
    rig = Told(1)
    rig.subscribe(1, f"{costly(0)} OR want = 'yes'")
    bodies = [b"%d" % number for number in range(200)]
    trio.lowlevel.add_instrument(selector_cost)

    rig.send(*bodies)
    rig.send(b"last", asker=98)
    await rig.rest()

    assert rig.heard(1) == [*bodies, b"last"]
    assert selector_cost.most <= TURN_MOST


async def test_sessions_take_turns_so_that_one_costly_client_delays_itself() -> None:
    rig = Told(2)
    for number in range(100):
        rig.subscribe(1, f"{costly(number)} OR want = 'yes'")
    cheap = rig.subscribe(2, "want = 'yes'")
    rig.send(b"1", to=rig.subscribers[:-1])

    rig.send(b"2", b"3", to=(cheap,), asker=98)

    assert rig.heard(2) == [b"2", b"3"]
    assert rig.heard(1).count(b"1") < 100
    await rig.rest()
    assert rig.heard(1).count(b"1") == 100


async def test_asker_waits_for_what_it_set_off_and_for_nothing_else(autojump_clock: MockClock) -> None:
    rig = told_by_many()
    done: list[str] = []
    rig.selecting.after_delivery(99, lambda: done.append("nothing yet"))
    rig.send(b"1", asker=99)
    rig.selecting.after_delivery(99, lambda: done.append("all"))
    with trio.fail_after(1):
        await rig.selecting.delivered(98)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.rest)
        await rig.selecting.delivered(99)
        assert len(rig.told) == 40

    assert done == ["nothing yet", "all"]


async def test_subscriber_that_left_is_selected_for_no_more(selector_cost: Toil) -> None:
    rig = told_by_many()
    rig.send(b"1")
    asked = selector_cost.asked

    rig.sessions[40].finishing = True
    del rig.sessions[39]
    for subscriber in rig.subscribers[:-4]:
        subscriber.closed = True
    await rig.rest()

    assert selector_cost.asked == asked and not rig.selecting.behind
    assert not rig.selecting._asked


async def test_failure_ends_the_subscriber_in_question_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    rig = told_by_many()
    rig.send(b"1")
    rig.selecting.behind[rig.sessions[40]][0].messages = None  # type: ignore[index,assignment]
    await rig.rest()

    assert [error.code for error in rig.sessions[40].ended] == ["not-selected"]
    assert rig.heard(39) == [b"1"] and not rig.selecting.behind


async def test_sender_is_not_read_before_what_it_set_off_is_delivered(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        clients = await picky_clients(rig, "/topic/t", clients=20)
        sender = await rig.connect()

        await sender.send(send("/topic/t", "1", want="yes"))
        await sender.send(send("/topic/none", "", "next"))
        await sender.receipt()

        assert not rig.alive.session_parts.dispatcher.selecting.behind
        assert [await client.messages(1) for client in clients] == [[b"1"]] * 20


async def test_connection_that_set_much_off_and_left_keeps_its_place_until_that_is_delivered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(limits={"connections_max": 1}).run() as rig:
        waiting: list[Callable[[], None]] = []
        monkeypatch.setattr(rig.alive.session_parts.host, "after_delivery", lambda session, do: waiting.append(do))
        sender = await rig.connect()

        sender.pipe.close()
        await eventually(lambda: bool(waiting))
        [refused] = await (await rig.dial()).until_closed()

        assert refused.head.headers["error-code"] == "too-many-connections"
        waiting.pop()()
        await rig.connect()


async def test_live_followers_of_a_fanout_read_the_log_when_selecting_costs_much(
    selector_cost: Toil, autojump_clock: MockClock
) -> None:
    async with Rig().run() as rig:
        clients = await picky_clients(rig, "/fanout/f", x_stream_offset="next")
        sender = await rig.connect()
        await nothing_more(sender)
        trio.lowlevel.add_instrument(selector_cost)

        for number in range(3):
            await sender.send(send("/fanout/f", str(number), str(number), want="yes"))
            await sender.receipt()

        for client in clients:
            assert await client.messages(3) == [b"0", b"1", b"2"]
        assert selector_cost.most <= TURN_MOST
        await eventually(lambda: rig.alive.session_parts.fanout_subscribers.live == 100)
        for client in clients:
            await nothing_more(client)


async def test_past_of_a_fanout_is_selected_in_slices(selector_cost: Toil, autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        sender = await rig.connect()
        for number in range(200):
            await sender.send(send("/fanout/f", str(number), want="yes", number=str(number)))
        await nothing_more(sender)
        trio.lowlevel.add_instrument(selector_cost)

        [plain] = await picky_clients(rig, "/fanout/f", clients=1, selectors=1)
        [durable] = await picky_clients(
            rig, "/fanout/f", clients=1, selectors=1, durable="true", x_stream_offset="first"
        )

        assert len(await plain.messages(200)) == 200
        assert len(await durable.messages(200)) == 200
        assert selector_cost.most <= TURN_MOST


async def test_past_of_a_fanout_with_long_headers_is_selected_in_slices_that_are_as_long(
    selector_cost: Toil, autojump_clock: MockClock
) -> None:
    async with Rig().run() as rig:
        sender = await rig.connect()
        for number in range(20):
            await sender.send(send("/fanout/f", str(number), want="yes", number=str(number), **LONG))
        await nothing_more(sender)
        trio.lowlevel.add_instrument(selector_cost)

        [plain] = await picky_clients(rig, "/fanout/f", clients=1, selectors=1)
        [durable] = await picky_clients(
            rig, "/fanout/f", clients=1, selectors=1, durable="true", x_stream_offset="first"
        )

        assert len(await plain.messages(20)) == 20
        assert len(await durable.messages(20)) == 20
        assert selector_cost.most <= TURN_MOST_OF_LONG


async def test_last_values_are_selected_in_slices(selector_cost: Toil, autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        sender = await rig.connect()
        for number in range(200):
            await sender.send(send(f"/topic/t.{number}", str(number), want="yes", retain="set"))
        await nothing_more(sender)
        trio.lowlevel.add_instrument(selector_cost)

        [client] = await picky_clients(rig, "/topic/t.*", clients=1, selectors=1)

        assert len(await client.messages(200)) == 200
        assert selector_cost.most <= TURN_MOST


async def test_queue_is_browsed_in_slices(selector_cost: Toil, autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        sender = await rig.connect()
        for number in range(200):
            await sender.send(send("/queue/q", str(number), want="yes", number=str(number)))
        await nothing_more(sender)
        trio.lowlevel.add_instrument(selector_cost)

        [client] = await picky_clients(rig, "/queue/q", clients=1, selectors=1, browser="true")

        assert len(await client.messages(200)) == 200
        assert selector_cost.most <= TURN_MOST


@pytest.mark.parametrize("in_memory", [1000, 10_000])
async def test_a_backlog_is_selected_in_slices_for_consumers_that_want_none_of_it(
    in_memory: int, selector_cost: Toil, autojump_clock: MockClock
) -> None:
    async with Rig(limits={"queue_messages_in_memory_max": in_memory}).run() as rig:
        sender = await rig.connect()
        for number in range(3000):
            await sender.send(send("/queue/q", "x", number=str(number)))
        await nothing_more(sender)
        await rig.alive.engine.checkpoints.checkpoint()
        await eventually(lambda: rig.alive.engine.checkpoints.count > 0)
        trio.lowlevel.add_instrument(selector_cost)

        clients = await picky_clients(rig, "/queue/q", clients=20, selectors=1, ack="client")
        await sender.send(send("/queue/q", "last", want="yes"))

        assert await clients[0].messages(1) == [b"last"]
        assert selector_cost.asked >= 3000 * 20
        assert selector_cost.most <= 3 * LOOKED_MAX * COST_SHARE
