"""A right contains no other one: what reads, sends, loses or locks by way of a rule needs the right for that, too."""

import json

import pytest
from trio.testing import MockClock

from qmq.config import User
from qmq.model.dots import covers
from tests.node.mesh_rig import MeshRig, isolate
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.sessions.clients.test_access import may, may_not, users
from tests.settings.routing.test_bindings import publish, request

ROWS = (
    may("dec", "send,subscribe,declare,administer", "/queue/mine.*", "/exchange/mine.*"),
    may("dec", "declare", "/queue/v.*", "/exchange/v.*"),
    may("victim", "send,subscribe,declare", "/queue/v.*", "/exchange/v.*"),
)
"""One user may do everything with its own, and only declare what another one uses."""

USERS = users("dec", "victim", "administrator")


def rig_of(*rows: object) -> Rig:
    return Rig(users=rig_users(), permissions=rows)


def rig_users() -> tuple[User, ...]:
    return (*(user.replace({"groups": ()}) for user in USERS[:2]), *USERS[2:])


async def log_in(rig: Rig | MeshRig, user: str, *node: str) -> Client:
    return await rig.connect(*node, login=user, passcode="secret", on_error="keep-open")


async def code(client: Client, destination: str, body: object = None, **headers: str) -> str:
    """`done`, or the code of the refusal."""
    return str((await request(client, destination, body, **headers)).get("code", "done"))


async def waiting(client: Client, queue: str) -> int:
    return int((await request(client, f"count-msgs{queue}", scope="mesh"))["num_messages"])


@pytest.mark.parametrize("headers", [{}, {"replace": "true"}], ids=["declare", "replace"])
@pytest.mark.parametrize("overflow", [{}, {"max_messages": 1, "overflow": "drop-oldest"}], ids=["expiry", "overflow"])
async def test_a_dead_letter_is_no_way_to_read_a_queue(
    autojump_clock: MockClock, headers: dict[str, str], overflow: dict[str, object]
) -> None:
    rules = {"ttl_seconds": 0.001, "dead_letter": "/queue/mine.loot", **overflow}
    async with rig_of(*ROWS).run() as rig:
        dec, victim, root = [await log_in(rig, name) for name in ("dec", "victim", "administrator")]
        if headers:
            assert await code(victim, "declare/queue/v.pay", {}) == "done"

        assert await code(dec, "declare/queue/v.pay", rules, **headers) == "not-allowed"

        assert await publish(victim, "/queue/v.pay", "secret") == "RECEIPT"
        assert (await waiting(root, "/queue/v.pay"), await waiting(root, "/queue/mine.loot")) == (1, 0)


async def test_an_alternate_and_the_end_of_an_exchange_are_no_way_to_read_it(autojump_clock: MockClock) -> None:
    async with rig_of(*ROWS).run() as rig:
        dec, victim = [await log_in(rig, name) for name in ("dec", "victim")]
        assert await code(victim, "declare/exchange/v.ex", {"type": "topic"}) == "done"
        assert await code(dec, "declare/exchange/mine.ex", {"type": "fanout"}) == "done"

        assert await code(dec, "delete/exchange/v.ex") == "not-allowed"
        assert await code(dec, "declare/exchange/v.new", {"type": "topic", "alternate": "mine.ex"}) == "not-allowed"
        assert await code(dec, "declare/exchange/v.new", {"type": "topic"}) == "done"
        assert await code(victim, "delete/exchange/v.ex") == "done"


@pytest.mark.parametrize(
    "rules",
    [
        {"expires_seconds": 0.001},
        {"ttl_seconds": 0.001},
        {"max_messages": 1, "overflow": "drop-oldest"},
        {"auto_delete": True},
        {"exclusive_to_connection": True},
    ],
)
@pytest.mark.parametrize("is_declared", [False, True])
async def test_rules_that_lose_messages_or_lock_others_out_need_more_than_declare(
    autojump_clock: MockClock, rules: dict[str, object], is_declared: bool
) -> None:
    async with rig_of(*ROWS).run() as rig:
        dec, victim, root = [await log_in(rig, name) for name in ("dec", "victim", "administrator")]
        if is_declared:
            assert await code(victim, "declare/queue/v.b", {}) == "done"
        for body in "123":
            assert await publish(victim, "/queue/v.b", body) == "RECEIPT"

        assert await code(dec, "declare/queue/v.b", rules, replace="true") == "not-allowed"

        assert await waiting(root, "/queue/v.b") == 3
        await victim.send(subscribe("/queue/v.b"))
        assert await victim.messages(3) == [b"1", b"2", b"3"]
        # Where it has never been used, it is new.
        assert await code(dec, "declare/queue/v.new", rules) == "done"


async def test_rules_for_messages_that_only_another_node_has_need_more_than_declare(autojump_clock: MockClock) -> None:
    mesh = MeshRig("a", "b", "c", users=rig_users(), permissions=ROWS)
    async with mesh.run():
        victim = await log_in(mesh, "victim", "a")
        assert await publish(victim, "/queue/v.b", "1", persistent="false") == "RECEIPT"
        assert "/queue/v.b" not in mesh.nodes["b"].broker.queues.by_name

        dec = await log_in(mesh, "dec", "b")

        assert await code(dec, "declare/queue/v.b", {"expires_seconds": 0.001}) == "not-allowed"


async def test_memory_only_messages_of_a_node_that_does_not_answer_are_not_seen_and_durable_ones_are(
    autojump_clock: MockClock,
) -> None:
    """What guarantees.md says: otherwise a producer that declares first would be refused whenever a node restarts."""
    mesh = MeshRig("a", "b", "c", users=rig_users(), permissions=ROWS)
    rules = {"expires_seconds": 0.001}
    async with mesh.run():
        victim = await log_in(mesh, "victim", "a")
        assert await publish(victim, "/queue/v.memory", "1", persistent="false") == "RECEIPT"
        assert await publish(victim, "/queue/v.disk", "1") == "RECEIPT"
        dec = await log_in(mesh, "dec", "b")
        a, b = mesh.nodes["a"].engine.path, mesh.nodes["b"].engine.path
        await eventually(lambda: covers(b.durable_vector(), a.durable_vector()))
        isolate(mesh, "a")

        assert await code(dec, "declare/queue/v.memory", {**rules, "dead_letter": "/queue/mine.loot"}) == "not-allowed"
        assert await code(dec, "declare/queue/v.memory", rules) == "done"
        assert await code(dec, "declare/queue/v.disk", rules) == "not-allowed"


async def test_a_consumer_declares_rules_for_a_queue_that_was_used_without(autojump_clock: MockClock) -> None:
    async with rig_of(*ROWS).run() as rig:
        victim = await log_in(rig, "victim")
        assert await publish(victim, "/queue/v.b", "1") == "RECEIPT"

        assert await code(victim, "declare/queue/v.b", {"max_messages": 10}) == "done"
        # It is its own now.
        assert await code(victim, "declare/queue/v.b", {"max_messages": 20}, replace="true") == "done"


async def test_a_binding_is_no_way_to_send_to_a_queue(autojump_clock: MockClock) -> None:
    async with rig_of(*ROWS).run() as rig:
        dec, victim = [await log_in(rig, name) for name in ("dec", "victim")]
        assert await code(dec, "declare/exchange/mine.ex", {"type": "fanout"}) == "done"
        assert await code(victim, "declare/exchange/v.ex", {"type": "fanout"}) == "done"
        assert await code(victim, "bind/queue/v.inj", source="/exchange/v.ex") == "done"

        assert await code(dec, "bind/queue/v.inj", source="/exchange/mine.ex") == "not-allowed"
        assert await code(dec, "unbind/queue/v.inj", source="/exchange/v.ex") == "not-allowed"
        assert await code(victim, "bind/exchange/v.ex", source="/exchange/mine.ex") == "not-allowed"
        assert await code(dec, "bind/queue/mine.q", source="/exchange/mine.ex") == "done"
        await dec.send(subscribe("/exchange/mine.ex", "s", x_queue_name="v.inj"))
        assert (await dec.any()).head.headers["error-code"] == "not-allowed"

        assert {one.queue for one in rig.alive.settings_parts.routing.bindings()} == {"/queue/mine.q", "/queue/v.inj"}


async def test_get_shows_no_message_of_a_queue_that_is_denied_and_trace_no_name(autojump_clock: MockClock) -> None:
    rows = (
        may("victim", "send", "/queue/*"),
        may("dec", "subscribe", "/queue/*", "/control/get/*"),
        may_not("dec", "subscribe", "/queue/v.*"),
        may("dec", "observe", "/queue/mine.*", "/control/trace/*"),
    )
    async with rig_of(*rows).run() as rig:
        dec, victim = [await log_in(rig, name) for name in ("dec", "victim")]
        for queue in ("v.night", "mine.q"):
            assert await publish(victim, f"/queue/{queue}", queue) == "RECEIPT"
        origin = rig.alive.broker.origin
        ids = [f"{origin}-{number}" for number in range(1, rig.alive.broker.next_sequence)]
        # One connection each: that of a message that is unknown ends.
        found = {id: await request(await log_in(rig, "dec"), f"get/{id}") for id in ids}

        shown = {id: facts["rows"][0]["body"] for id, facts in found.items() if "rows" in facts}
        assert list(shown.values()) == ["mine.q"]
        (hidden,) = [id for id, facts in found.items() if facts.get("code") == "not-allowed"]
        assert await code(dec, f"trace/{hidden}") == "not-allowed"
        (mine,) = shown
        assert await code(dec, f"trace/{mine}") == "done"


async def test_a_trace_hides_the_queue_to_which_a_letter_went(autojump_clock: MockClock) -> None:
    rows = (may("dec", "observe", "/queue/mine.*", "/control/trace/*"),)
    async with rig_of(*rows).run() as rig:
        root, dec = await log_in(rig, "administrator"), await log_in(rig, "dec")
        assert await publish(root, "/queue/mine.q", "x") == "RECEIPT"
        assert await code(root, "move/queue/mine.q", to="/queue/v.q") == "done"
        (moved,) = (await request(root, "peek/queue/v.q"))["rows"]
        id = f"{rig.alive.broker.origin}-{int(moved['message_id'].rpartition('-')[2]) - 1}"

        events = (await request(dec, f"trace/{id}"))["events"]

        assert [(one["event"], one["destination"]) for one in events] == [("accepted", "/queue/mine.q"), ("moved", "?")]


async def test_a_move_is_no_way_to_read_a_queue_or_to_send_to_one(autojump_clock: MockClock) -> None:
    rows = (
        may("dec", "administer", "/queue/v.*"),
        may("dec", "send,subscribe,administer", "/queue/mine.*"),
        may("victim", "send,subscribe", "/queue/v.*"),
    )
    async with rig_of(*rows).run() as rig:
        dec, victim, root = [await log_in(rig, name) for name in ("dec", "victim", "administrator")]
        assert await publish(victim, "/queue/v.mv", "v-secret") == "RECEIPT"
        assert await publish(dec, "/queue/mine.forged", "forged") == "RECEIPT"

        assert await code(dec, "move/queue/v.mv", to="/queue/mine.mv") == "not-allowed"
        assert await code(dec, "move/queue/mine.forged", to="/queue/v.mv") == "not-allowed"
        assert await code(dec, "move/queue/mine.forged", to="/queue/mine.mv") == "done"

        assert (await waiting(root, "/queue/v.mv"), await waiting(root, "/queue/mine.mv")) == (1, 1)


async def test_what_is_declared_already_needs_any_one_right(autojump_clock: MockClock) -> None:
    rows = (
        may("victim", "send,subscribe,declare", "/queue/v.*", "/exchange/v.*"),
        may("dec", "send", "/queue/v.a", "/exchange/v.ex/k"),
    )
    async with rig_of(*rows).run() as rig:
        dec, victim = [await log_in(rig, name) for name in ("dec", "victim")]
        rules = {"ttl_seconds": 5, "dead_letter": "/queue/v.dead"}
        exchange = {"type": "direct", "alternate": "v.other"}
        for client, answers in ((victim, ["done"] * 4), (dec, ["done", "done", "not-allowed", "done"])):
            if client is victim:
                assert await code(client, "declare/exchange/v.other", {"type": "fanout"}) == "done"
            assert await code(client, "declare/queue/v.a", rules) == answers[0]
            assert await code(client, "declare/exchange/v.ex", exchange) == answers[1]
            assert await code(client, "declare/queue/v.b", rules) == answers[2]
            assert await code(client, "bind/queue/v.a", source="/exchange/v.ex", key="k") == answers[3]

        assert await code(dec, "declare/queue/v.a", {}, passive="true") == "done"
        assert await code(dec, "declare/queue/v.b", {}, passive="true") == "not-allowed"
        assert await code(dec, "declare/queue/v.a", {"ttl_seconds": 6}) == "not-allowed"
        assert await code(dec, "declare/queue/v.a", {"ttl_seconds": 6}, replace="true") == "not-allowed"
        assert await code(dec, "bind/queue/v.a", source="/exchange/v.ex", key="other") == "not-allowed"
        assert await code(dec, "delete/exchange/v.ex") == "not-allowed"


@pytest.mark.parametrize("actions", ["send", "declare", "declare,send"])
async def test_a_client_that_may_not_declare_all_of_it_brings_nothing_back_behind_a_cut(
    autojump_clock: MockClock, actions: str
) -> None:
    everything = ("/queue/v.*", "/exchange/v.*")
    rows = (may("victim", "send,subscribe,declare", *everything), may("dec", actions, *everything))
    letters, exchange = {"dead_letter": "/queue/v.dead"}, {"type": "fanout", "alternate": "v.other"}
    mesh = MeshRig("a", "b", "c", users=rig_users(), permissions=rows)
    async with mesh.run():
        victim, dec = await log_in(mesh, "victim", "a"), await log_in(mesh, "dec", "a")
        assert await code(victim, "declare/queue/v.a", letters) == "done"
        assert await code(victim, "declare/exchange/v.other", {"type": "fanout"}) == "done"
        assert await code(victim, "declare/exchange/v.ex", exchange) == "done"
        await eventually(
            lambda: all("v.ex" in mesh.nodes[name].settings_parts.rules.routing.exchanges for name in "abc")
        )
        isolate(mesh, "a")
        await eventually(lambda: not mesh.nodes["a"].settings_parts.declared_queues.reaches_all())
        written = mesh.nodes["a"].settings_parts.definitions.table.by_key.copy()

        assert await code(dec, "declare/queue/v.a", letters) == "done"
        assert await code(dec, "declare/exchange/v.ex", exchange) == "done"
        assert mesh.nodes["a"].settings_parts.definitions.table.by_key == written
        assert await code(victim, "declare/queue/v.a", letters) == "done"
        assert mesh.nodes["a"].settings_parts.definitions.table.by_key != written


async def test_the_status_shows_the_position_to_clients_that_may_follow_a_fanout(autojump_clock: MockClock) -> None:
    rows = (may("dec", "subscribe", "/fanout/mine.*"),)
    async with rig_of(*rows).run() as rig:
        dec, root = await log_in(rig, "dec"), await log_in(rig, "administrator")

        async def keys(client: Client, **headers: str) -> set[str]:
            await client.send(send("/control/status", "", "r", **headers))
            return set(json.loads((await client.next("RECEIPT")).head.headers["status"]))

        assert await keys(dec) == await keys(dec, about="/fanout/v.f") == {"node", "software"}
        assert await keys(dec, about="/queue/mine.q") == {"node", "software"}
        assert await keys(dec, about="/fanout/mine.f") == {"node", "software", "incarnation", "vector"}
        assert "connections" in await keys(root)


async def test_a_user_may_change_the_rules_that_it_declared_and_others_need_administer(
    autojump_clock: MockClock,
) -> None:
    rows = (*(may(user, "send,subscribe,declare", "/queue/*") for user in ("dec", "victim")),)
    async with rig_of(*rows).run() as rig:
        dec, victim, root = [await log_in(rig, name) for name in ("dec", "victim", "administrator")]
        assert await code(victim, "declare/queue/q", {"max_messages": 5}) == "done"

        assert await code(await log_in(rig, "dec"), "declare/queue/q", {"max_messages": 6}) == "declared-otherwise"
        assert await code(dec, "declare/queue/q", {"max_messages": 6}, replace="true") == "not-allowed"
        assert await code(victim, "declare/queue/q", {"max_messages": 7}, replace="true") == "done"
        assert await code(root, "declare/queue/q", {"max_messages": 8}, replace="true") == "done"
        assert await code(victim, "declare/queue/q", {"max_messages": 9}, replace="true") == "done"


async def test_a_subscribe_that_declares_needs_the_rights_of_a_declaration(autojump_clock: MockClock) -> None:
    rows = (
        may("victim", "send,subscribe,declare", "/queue/v.*"),
        may("dec", "subscribe", "/queue/v.*"),
        may("dec", "subscribe,declare", "/queue/mine.*"),
    )
    letters = {"x_message_ttl": "1", "x_dead_letter_exchange": "", "x_dead_letter_routing_key": "v.other"}
    async with rig_of(*rows).run() as rig:
        dec, victim = [await log_in(rig, name) for name in ("dec", "victim")]
        assert await code(victim, "declare/queue/v.q", {"max_messages": 5, "overflow": "drop-oldest"}) == "done"
        for queue, words, answer in (
            ("v.q", {"x_max_length": "5"}, "RECEIPT"),
            ("v.new", {"x_max_length": "5"}, "not-allowed"),
            ("v.new", {"auto_delete": "true"}, "not-allowed"),
            ("mine.q", {"x_max_length": "5"}, "RECEIPT"),
            ("mine.other", letters, "not-allowed"),
        ):
            await dec.send(subscribe(f"/queue/{queue}", queue, **words))
            frame = await dec.any()
            assert frame.head.headers.get("error-code", frame.head.command) == answer, (queue, words)
