"""Last values of topics: later subscribers get them first, on any node, in order and once."""

from dataclasses import asdict

import pytest
import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings
from qmq.sessions.clients.subscriber_buffers import STRAIGHT_BYTES_MAX
from qmq.sessions.delivery.retained_delivery import PAGE_BYTES
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.support.conditions import reported

Heard = list[tuple[str, str, bool]]


async def said(client: Client, destination: str, *bodies: str, **headers: str) -> None:
    """Send and wait until the node has taken it."""
    for body in bodies:
        await client.send(send(destination, body, "r", **headers))
        await client.receipt()


async def set_value(client: Client, destination: str, *bodies: str) -> None:
    await said(client, destination, *bodies, retain="set")


async def heard(client: Client, count: int) -> Heard:
    """(topic, body, whether it came as a retained value) of so many messages."""
    found: Heard = []
    for _ in range(count):
        frame = await client.next("MESSAGE")
        headers = frame.head.headers
        topic = headers["destination"].removeprefix("/topic/")
        found.append((topic, frame.body.decode(), headers.get("retained") == "true"))
    return found


# One node


@pytest.mark.parametrize("pattern", ["/topic/a.b", "/topic/a*", "/topic/a.#", "/topic/*.b"])
async def test_a_late_subscriber_hears_the_last_value_and_then_what_is_live(
    pattern: str, autojump_clock: MockClock
) -> None:
    async with Rig().run() as rig:
        writer, late = await rig.connect(), await rig.connect()
        await set_value(writer, "/topic/a.b", "one", "two")
        await said(writer, "/topic/a.b", "not kept")
        await set_value(writer, "/topic/other", "x")

        await late.send(subscribe(pattern))
        first = await heard(late, 1)
        await set_value(writer, "/topic/a.b", "three")
        await said(writer, "/topic/a.b", "four")

        assert first == [("a.b", "two", True)]
        assert await heard(late, 2) == [("a.b", "three", False), ("a.b", "four", False)]


async def test_headers_of_the_value_come_back_and_the_mark_cannot_be_forged(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(
            subscribe("/topic/t", id="live"), send("/topic/t", "v", None, retain="set", mine="x", retained="true")
        )
        live = (await client.next("MESSAGE")).head.headers
        await client.send(subscribe("/topic/t", id="late"))
        late = (await client.next("MESSAGE")).head.headers

        assert live["mine"] == late["mine"] == "x"
        assert "retained" not in live and late["retained"] == "true"
        assert live["message-id"] == late["message-id"]
        assert (live["subscription"], late["subscription"]) == ("live", "late")


async def test_remove_takes_the_value_away_and_is_heard_live(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        writer, early, late = await rig.connect(), await rig.connect(), await rig.connect()
        await set_value(writer, "/topic/t", "v")
        await early.send(subscribe("/topic/t"))
        await early.receipt()

        await said(writer, "/topic/t", "bye", retain="remove")
        await late.send(subscribe("/topic/t"))
        await late.receipt()
        await said(writer, "/topic/t", "live")

        assert await heard(early, 3) == [("t", "v", True), ("t", "bye", False), ("t", "live", False)]
        assert await heard(late, 1) == [("t", "live", False)]


async def test_an_empty_value_is_a_value(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await set_value(client, "/topic/t", "")
        await client.send(subscribe("/topic/t"))

        assert await heard(client, 1) == [("t", "", True)]


async def test_a_policy_keeps_every_last_value(autojump_clock: MockClock) -> None:
    policies = (DestinationPolicy(pattern="/topic/price.*", retain=True),)
    async with Rig(destinations=DestinationSettings(policies=policies)).run() as rig:
        client = await rig.connect()
        await said(client, "/topic/price.x", "1", "2")
        await said(client, "/topic/other", "1")
        await said(client, "/topic/price.y", "1")
        await said(client, "/topic/price.y", "", retain="remove")

        await client.send(subscribe("/topic/*"), send("/topic/end", ""))

        assert await heard(client, 2) == [("end", "", False), ("price.x", "2", True)]


async def test_what_else_than_set_and_remove_is_refused(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send("/topic/t", "", "r", retain="true"))

        (error,) = await client.until_closed()

        assert error.head.headers["error-code"] == "bad-retain"
        assert "set, remove" in error.head.headers["message"]


async def test_retain_means_nothing_to_queues_and_travels(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(subscribe("/queue/q"), send("/queue/q", "", "r", retain="true"))

        assert (await client.next("MESSAGE")).head.headers["retain"] == "true"


async def test_one_value_too_many_is_refused_and_what_is_kept_stays(autojump_clock: MockClock) -> None:
    async with Rig(limits={"retained_topics_max": 2}).run() as rig:
        client = await rig.connect(on_error="keep-open")
        await set_value(client, "/topic/a", "1")
        await set_value(client, "/topic/b", "1")
        await client.send(subscribe("/topic/c", id="c"), send("/topic/c", "1", "r", retain="set"))
        await client.receipt()

        while (frame := await client.any()).head.command != "ERROR":
            assert frame.head.command != "MESSAGE"

        assert frame.head.headers["error-code"] == "too-many-retained"
        await set_value(client, "/topic/a", "2")
        await client.send(subscribe("/topic/*"))
        assert await heard(client, 2) == [("a", "2", True), ("b", "1", True)]
        assert asdict(rig.alive.broker.retained.statistics()) == {
            "left_out": 0,
            "topics": 2,
            "bytes": 2 * len("/topic/a") + len("retain:set\n") * 2 + 2,
        }


async def test_a_transaction_sets_all_its_values_or_none(autojump_clock: MockClock) -> None:
    async with Rig(limits={"retained_topics_max": 2}).run() as rig:
        good, bad, late = await rig.connect(), await rig.connect(), await rig.connect()
        for client, names in ((bad, "abc"), (good, "de")):
            await client.send(
                "BEGIN\ntransaction:t\n\n",
                *[send(f"/topic/{name}", name, None, retain="set", transaction="t") for name in names],
                "COMMIT\ntransaction:t\nreceipt:c\n\n",
            )
        (error,) = await bad.until_closed()
        assert error.head.headers["error-code"] == "too-many-retained"
        assert await good.receipt() == "c"

        await late.send(subscribe("/topic/*"))

        assert await heard(late, 2) == [("d", "d", True), ("e", "e", True)]


async def test_a_selector_chooses_among_the_values_too(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        for name, colour in (("a", "red"), ("b", "blue"), ("c", "red")):
            await said(client, f"/topic/{name}", name, retain="set", colour=colour)

        await client.send(subscribe("/topic/*", selector="colour = 'red'"))

        assert await heard(client, 2) == [("a", "a", True), ("c", "c", True)]


async def fill(rig: Rig, count: int, body: str) -> None:
    """So many values, below /topic/v."""
    writer = await rig.connect()
    for start in range(0, count, 100):
        await writer.send(
            *[send(f"/topic/v.{n:06}", f"{n} {body}", None, retain="set") for n in range(start, start + 100)]
        )
    await said(writer, "/topic/end", "")


async def test_a_client_that_does_not_read_gets_very_many_values_at_its_own_pace(autojump_clock: MockClock) -> None:
    limits = {"outbox_bytes_max": 600_000, "body_bytes_max": 20_000}
    async with Rig(limits=limits).run() as rig:
        await fill(rig, 2000, "x" * 1000)
        slow = await rig.connect("10.0.0.2")
        session = next(session for session in rig.alive.sessions.values() if session.peer_address == "10.0.0.2")

        await slow.send(subscribe("/topic/#"), subscribe("/topic/v.000007", id="one"))
        await slow.receipt()
        await slow.receipt()
        for _ in range(100):
            await trio.sleep(0.01)
            assert session.outbox.size <= STRAIGHT_BYTES_MAX + 2 * PAGE_BYTES

        found = await heard(slow, 2001)
        assert [body.split()[0] for _, body, _ in found if found].count("7") == 2
        assert len({topic for topic, _, _ in found}) == 2000
        await eventually(lambda: not rig.alive.session_parts.dispatcher.retained_delivery.walking)


async def test_live_messages_of_a_topic_never_come_before_its_value_nor_the_value_twice(
    autojump_clock: MockClock,
) -> None:
    async with Rig().run() as rig:
        await fill(rig, 2000, "x" * 1000)
        slow, writer = await rig.connect("10.0.0.2"), await rig.connect()
        await slow.send(subscribe("/topic/v.#"))
        await slow.receipt()
        assert rig.alive.session_parts.dispatcher.retained_delivery.walking

        for n in range(0, 2000, 10):
            await set_value(writer, f"/topic/v.{n:06}", "new")
        for n in range(5, 2000, 10):
            await said(writer, f"/topic/v.{n:06}", "plain")
        await said(writer, "/topic/v.end", "end")

        by_topic: dict[str, list[tuple[str, bool]]] = {}
        while "v.end" not in by_topic or rig.alive.session_parts.dispatcher.retained_delivery.walking or slow.frames:
            ((topic, body, retained),) = await heard(slow, 1)
            by_topic.setdefault(topic, []).append((body.split()[0], retained))
        while len(by_topic) < 2001:
            ((topic, body, retained),) = await heard(slow, 1)
            by_topic.setdefault(topic, []).append((body.split()[0], retained))
        for n in range(2000):
            got = by_topic[f"v.{n:06}"]
            if n % 10 == 0:
                assert got in ([("new", False)], [(f"{n}", True), ("new", False)])
            elif n % 10 == 5:
                assert got == [(f"{n}", True), ("plain", False)]
            else:
                assert got == [(f"{n}", True)]


async def test_values_wait_for_a_subscription_with_a_buffer_as_long_as_it_takes(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        await fill(rig, 500, "x" * 1000)
        slow = await rig.connect()

        await slow.send(subscribe("/topic/v.*", buffer_messages="1", overflow="drop-oldest"))

        assert [body.split()[0] for _, body, _ in await heard(slow, 500)] == [str(n) for n in range(500)]
        assert rig.alive.session_parts.buffers.dropped == 0


async def test_a_subscriber_that_leaves_half_way_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        await fill(rig, 1000, "x" * 1000)
        leaver, stays = await rig.connect(), await rig.connect()
        await leaver.send(subscribe("/topic/#"))
        await stays.send(subscribe("/topic/#", id="s"), "UNSUBSCRIBE\nid:s\nreceipt:u\n\n")
        await leaver.receipt()
        leaver.pipe.close()

        await eventually(lambda: not rig.alive.session_parts.dispatcher.retained_delivery.walking)


async def test_values_that_cannot_be_delivered_end_their_subscriber_and_nothing_else(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        reader, other = await rig.connect(), await rig.connect()
        await set_value(other, "/topic/t", "v")

        def broken(*arguments: object) -> object:
            raise RuntimeError("a bug")

        monkeypatch.setattr(rig.alive.broker.retained, "page", broken)
        await reader.send(subscribe("/topic/#"))
        frames = await reader.until_closed()
        monkeypatch.undo()
        await other.send(subscribe("/topic/#"))

        assert frames[-1].head.headers["error-code"] == "values-untold"
        assert await heard(other, 1) == [("t", "v", True)]


# Several nodes


async def test_a_subscriber_on_another_node_hears_the_last_value(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        writer, late = await mesh.connect("a"), await mesh.connect("b")
        await set_value(writer, "/topic/t", "one", "two")
        await until_same(mesh)

        await late.send(subscribe("/topic/#"))
        first = await heard(late, 1)
        await mesh.until_wanted("a", "/topic/t")
        await set_value(writer, "/topic/t", "three")
        await said(writer, "/topic/t", "four")
        await set_value(writer, "/topic/u", "five")

        assert first == [("t", "two", True)]
        assert await heard(late, 3) == [("t", "three", False), ("t", "four", False), ("u", "five", False)]


async def test_a_removed_value_is_removed_everywhere(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        a, b = await mesh.connect("a"), await mesh.connect("b")
        await set_value(a, "/topic/t", "v")
        await until_same(mesh)

        await said(b, "/topic/t", "", retain="remove")
        await until_same(mesh)

        assert all(node.broker.retained.topics == 0 for node in mesh.nodes.values())


async def test_a_subscriber_that_comes_while_values_change_elsewhere_gets_each_once_and_in_order(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        writer = await mesh.connect("a")
        joiners = [await mesh.connect("b") for _ in range(20)]

        async def write() -> None:
            for n in range(200):
                await set_value(writer, "/topic/t", str(n))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for joiner in joiners:
                await trio.sleep(0.005)
                await joiner.send(subscribe("/topic/t"))

        for joiner in joiners:
            found = await heard(joiner, 1)
            while found[-1][1] != "199":
                found += await heard(joiner, 1)
            numbers = [int(body) for _, body, _ in found]
            assert numbers == list(range(numbers[0], 200))
            assert [retained for _, _, retained in found[1:]] == [False] * (len(found) - 1)


async def test_values_set_on_both_sides_of_a_cut_end_as_one_and_live_subscribers_hear_it(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        a, b = await mesh.connect("a"), await mesh.connect("b")
        live = {name: await mesh.connect(name) for name in "ab"}
        for client in live.values():
            await client.send(subscribe("/topic/#"))
            await client.receipt()
        mesh.cut("a", "b")
        await eventually(lambda: mesh.link("a", "b") == mesh.link("b", "a") == "down")
        await set_value(a, "/topic/t", "a's")
        await set_value(b, "/topic/t", "b's")
        await set_value(a, "/topic/only-a", "x")

        mesh.heal("a", "b")
        await until_same(mesh)

        assert await heard(live["a"], 3) == [("t", "a's", False), ("only-a", "x", False), ("t", "b's", True)]
        assert await heard(live["b"], 2) == [("t", "b's", False), ("only-a", "x", True)]


async def test_a_node_that_two_others_cannot_reach_each_other_through_passes_values_on(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a, late = await mesh.connect("a"), await mesh.connect("b")
        mesh.cut("a", "b")
        await eventually(lambda: mesh.link("b", "a") == "down")

        await set_value(a, "/topic/t", "one")
        await set_value(a, "/topic/t", "two")
        await eventually(lambda: mesh.nodes["b"].broker.retained.topics == 1)
        await until_same(mesh)
        await late.send(subscribe("/topic/t"))

        assert await heard(late, 1) == [("t", "two", True)]


async def test_what_was_set_just_before_a_cut_was_noticed_comes_through_a_third(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a = await mesh.connect("a")
        mesh.cut("a", "b")

        await set_value(a, "/topic/t", "one")
        await eventually(lambda: mesh.link("b", "a") == "down")

        await until_same(mesh)
        assert mesh.nodes["b"].broker.retained.topics == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_value_that_finds_no_room_on_another_node_raises_a_condition_there(
    when: str, autojump_clock: MockClock
) -> None:
    async with MeshRig("a", "b", limits={"retained_topics_max": 1}).run() as mesh:
        a, b = await mesh.connect("a"), await mesh.connect("b")
        if when == "before":
            mesh.cut("a", "b")
            await eventually(lambda: mesh.link("a", "b") == mesh.link("b", "a") == "down")
        await b.send(subscribe("/topic/#"), send("/topic/b", "x", "set", retain="set"))
        while await b.receipt() != "set":
            pass
        mesh.nodes["a"].broker.retained.topics_max = 2
        if when == "after":
            await mesh.until_wanted("a", "/topic/a")

        await set_value(a, "/topic/a", "y")
        if when == "before":
            mesh.heal("a", "b")

        assert sorted(await heard(b, 2)) == [("a", "y", when == "before"), ("b", "x", False)]
        assert [one["code"] for one in reported(mesh.nodes["b"])] == ["retained-full"]
        assert mesh.nodes["b"].broker.retained.statistics().left_out == 1


async def test_in_a_whole_mesh_a_value_crosses_each_link_once(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        learnt = {name: 0 for name in mesh.nodes}
        for name, node in mesh.nodes.items():
            learn = node.broker.retained.learn

            def counted(message: object, peer: str, name: str = name, learn: object = learn) -> object:
                learnt[name] += 1
                return learn(message, peer)  # type: ignore[operator]

            node.broker.retained.learn = counted  # type: ignore[method-assign,assignment]
        await trio.sleep(10)  # beats pass: everybody has told whom it follows directly, so nobody relays
        a = await mesh.connect("a")

        await set_value(a, "/topic/t", *map(str, range(50)))
        await until_same(mesh)

        assert learnt == {"a": 0, "b": 0, "c": 0}, "all came as messages, none was repeated"


async def until_same(mesh: MeshRig) -> None:
    """All nodes have the same values, and nobody has anything left to tell."""

    def values() -> list[dict[str, tuple[bytes, bool]]]:
        return [
            {name: (value.message.body, value.is_removed) for name, value in node.broker.retained.values.items()}
            for node in mesh.nodes.values()
        ]

    await eventually(lambda: all(found == values()[0] and found for found in values()))
