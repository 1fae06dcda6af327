"""Queues that are declared: their rules on every node, what counts beside policies, and declarations that differ."""

import json
from typing import Any

import pytest
from trio.testing import MockClock

from benchmarks.growth import Order
from benchmarks.work import work_of
from qmq.access.rules import Principal
from qmq.broker.routing.binding import Binding
from qmq.config import DestinationPolicy, DestinationSettings, User
from qmq.config.users import PermissionSettings
from qmq.definitions.definition import Key
from qmq.verbs.table import needs_of
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.sessions.clients.test_access import users
from tests.settings.definitions.test_definitions_mesh import limit_of, put, until_alike

Q = "/queue/q"


async def request(client: Client, asked: str, body: object = "", **headers: str) -> dict[str, str]:
    """The headers of the answer: of the RECEIPT, or of the ERROR, after which the connection is closed."""
    text = body if isinstance(body, str) else json.dumps(body)
    await client.send(send(f"/control/{asked}", text, "r", **headers))
    while (frame := await client.any()).head.command not in ("RECEIPT", "ERROR"):
        pass
    return dict(frame.head.headers)


async def declare(mesh: MeshRig, name: str, queue: str = Q, value: object = "", **headers: str) -> dict[str, str]:
    client = await mesh.connect(name)
    answer = await request(client, f"declare{queue}", value, **headers)
    client.pipe.close()
    return answer


async def test_a_declared_queue_has_its_rules_on_every_node_and_after_a_restart(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        answer = await declare(mesh, "a", value={"delivery_limit": 7, "max_messages": 1})
        await until_alike(mesh)

        assert (answer["changed"], answer["destination"]) == ("1", Q)
        assert [limit_of(node) for node in mesh.nodes.values()] == [7, 7, 7]
        client = await mesh.connect("b")
        await client.send(send(Q, "1"), send(Q, "2", "r"))
        assert (await client.any()).head.headers["error-code"] == "queue-full"

        await mesh.kill("c")
        await mesh.start("c")
        await mesh.until_linked()
        assert limit_of(mesh.nodes["c"]) == 7


async def test_it_lists_a_declared_queue_without_messages(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await declare(mesh, "a", max_messages="5")
        await until_alike(mesh)

        client = await mesh.connect("b")
        rows = json.loads((await request(client, "list/queue/*", scope="mesh"))["destinations"])

        assert [(row["destination"], row["messages"], row["declared"]) for row in rows] == [
            (Q, 0, '{"max_messages":5}')
        ]


@pytest.mark.parametrize(
    ("first", "second", "code", "words"),
    [
        ({}, {}, None, ""),
        ({"ttl_seconds": 60}, {"ttl_seconds": 60.0}, None, ""),
        ({"max_bytes": "1KiB"}, {"max_bytes": 1024}, None, ""),
        ({"ttl_seconds": 60}, {"ttl_seconds": 30}, "declared-otherwise", "ttl_seconds is 60.0, requested: 30.0"),
        ({"ttl_seconds": 60}, {}, "declared-otherwise", "ttl_seconds is 60.0, requested: not set"),
        ({}, {"durable": True}, "declared-otherwise", "durable is not set, requested: true"),
        (
            {"priority": 1, "overflow": "refuse"},
            {"priority": 2, "overflow": "drop-oldest"},
            "declared-otherwise",
            'overflow is "refuse", requested: "drop-oldest"; priority is 1, requested: 2',
        ),
    ],
)
async def test_the_same_declaration_changes_nothing_and_another_is_refused(
    autojump_clock: MockClock, first: object, second: object, code: str | None, words: str
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await declare(mesh, "a", value=first)
        await until_alike(mesh)
        before = mesh.nodes["b"].engine.path.durable_vector()

        answer = await declare(mesh, "b", value=second)

        assert answer.get("error-code") == code
        assert words in answer.get("message", "")
        assert answer.get("changed", "0") == "0"
        assert mesh.nodes["b"].engine.path.durable_vector() == before
        if code is not None:
            assert (await declare(mesh, "b", value=second, replace="true"))["changed"] == "1"


@pytest.mark.parametrize(
    ("queue", "value", "words"),
    [
        (Q, {"max_mesages": 5}, "max_mesages: unknown key; did you mean max_messages? Allowed are durable, max_mess"),
        (Q, {"max_messages": "5"}, "max_messages = '5': must be a whole number"),
        (Q, {"overflow": "drop"}, "must be 'refuse', 'drop-oldest' or 'drop-newest'"),
        (Q, {"pattern": "/queue/x"}, "pattern: unknown key"),
        (Q, {"locked": True}, "locked: unknown key"),
        (Q, {"dead_letter": Q}, "must be another queue than this one"),
        (Q, {"receipt": "replicas=2"}, "must be at most replicas=1"),
        (Q, [], "must be a JSON object"),
        (Q, "{", "must be a JSON object"),
        ("/queue/q*", {}, "names one queue, /queue/NAME"),
        ("/topic/t", {}, "names one queue, /queue/NAME"),
    ],
)
async def test_a_bad_declaration_names_the_key_and_what_is_allowed(
    autojump_clock: MockClock, queue: str, value: object, words: str
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        before = mesh.nodes["a"].engine.path.durable_vector()

        answer = await declare(mesh, "a", queue, value)

        assert words in answer["message"]
        assert mesh.nodes["a"].engine.path.durable_vector() == before


async def test_dead_letters_of_declared_queues_may_form_a_cycle(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        await declare(mesh, "a", value={"dead_letter": "/queue/r"})

        answer = await declare(mesh, "a", "/queue/r", {"dead_letter": Q})

        assert answer["changed"] == "1"


def policies(*given: dict[str, Any]) -> DestinationSettings:
    return DestinationSettings(policies=tuple(DestinationPolicy(**one) for one in given))


async def test_a_declaration_wins_over_policies_for_the_keys_that_it_names(autojump_clock: MockClock) -> None:
    mesh = MeshRig("a")
    mesh.destinations["a"] = policies(
        {"pattern": "/queue/*", "delivery_limit": 3, "max_messages": 10},
        {"pattern": "/queue/exact", "delivery_limit": 4, "max_messages": 11},
    )
    async with mesh.run():
        for queue in (Q, "/queue/exact"):
            await declare(mesh, "a", queue, {"delivery_limit": 9})

        rules = mesh.nodes["a"].settings_parts.policies.queue_rules
        assert (rules(Q).delivery_limit, rules(Q).messages_max) == (9, 10)
        assert (rules("/queue/exact").delivery_limit, rules("/queue/exact").messages_max) == (9, 11)

        await put(mesh, "a", "/queue/*", delivery_limit=5, max_messages=12)
        assert (rules(Q).delivery_limit, rules(Q).messages_max) == (9, 12)


async def test_queues_with_the_same_declaration_share_their_rules(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        node = mesh.nodes["a"]
        for queue in (Q, "/queue/r"):
            await declare(mesh, "a", queue, {"max_messages": 5})

        assert node.settings_parts.policies.queue_rules(Q) is node.settings_parts.policies.queue_rules("/queue/r")
        assert node.settings_parts.policies.queue_rules(Q) is not node.settings_parts.policies.queue_rules(
            "/queue/other"
        )


async def test_a_sender_and_an_existing_queue_follow_a_declaration(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        client = await mesh.connect("a")
        await client.send(send(Q, "1", "1"))
        await client.receipt()
        await declare(mesh, "a", value={"max_messages": 1, "durable": False})

        await client.send(send(Q, "2", "2"))
        assert (await client.any()).head.headers["error-code"] == "queue-full"

        client = await mesh.connect("a")
        before = mesh.nodes["a"].engine.path.durable_vector()
        await declare(mesh, "a", value={"durable": False}, replace="true")
        written = mesh.nodes["a"].engine.path.durable_vector()[mesh.nodes["a"].origin] - before[mesh.nodes["a"].origin]
        await client.send(send(Q, "2", "2"))
        await client.receipt()
        assert (
            mesh.nodes["a"].engine.path.durable_vector()[mesh.nodes["a"].origin]
            == before[mesh.nodes["a"].origin] + written
        )


async def test_a_declared_queue_exists_where_none_is_created_on_use(autojump_clock: MockClock) -> None:
    mesh = MeshRig("a")
    mesh.destinations["a"] = DestinationSettings(create_on_use=False)
    async with mesh.run():
        client = await mesh.connect("a")
        await client.send(subscribe(Q))
        assert (await client.any()).head.headers["error-code"] == "unknown-destination"

        assert "must be declared" in (await declare(mesh, "a", value={"dead_letter": "/queue/d"}))["message"]
        await declare(mesh, "a")

        client = await mesh.connect("a")
        await client.send(subscribe(Q))
        assert await client.receipt() == "sub-0"


async def test_a_passive_declaration_only_looks(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        assert (await declare(mesh, "a", passive="true"))["error-code"] == "unknown-destination"
        assert not mesh.nodes["a"].settings_parts.definitions.table.by_key

        await declare(mesh, "a", max_messages="5")
        assert json.loads((await declare(mesh, "a", passive="true"))["value"]) == {"max_messages": 5}


async def test_a_dry_run_declares_nothing(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        assert (await declare(mesh, "a", dry_run="true", max_messages="5"))["changed"] == "1"
        assert not mesh.nodes["a"].settings_parts.definitions.table.by_key


async def test_it_needs_to_declare_and_read_the_queue_and_to_send_to_that_of_its_dead_letters(
    autojump_clock: MockClock,
) -> None:
    ann = User(name="ann", password_hash=None)
    rows = (
        PermissionSettings(user="ann", allow=("declare", "send"), destinations=("/queue/ann.*",)),
        PermissionSettings(user="ann", allow=("declare", "subscribe"), destinations=("/queue/q",)),
        PermissionSettings(user="ann", allow=("declare",), destinations=("/queue/unread",)),
        PermissionSettings(
            user="ann",
            allow=("send",),
            destinations=("/exchange/x", "/exchange/x/ann", "/exchange/x/None", "/exchange/y*"),
        ),
    )
    rig = Rig()
    async with rig.run():
        node = rig.alive
        node.session_parts.login_path.access.change([ann], [row.permission for row in rows])
        right = node.session_parts.login_path.access.rights_of(Principal("ann"))
        right.check_needs(needs_of("/control/declare/queue/q"))
        for queue, dead_letter, code in [
            ("/queue/other", "", "not-allowed"),
            ("/queue/q", "/queue/other", "not-allowed"),
            ("/queue/unread", "/queue/ann.dead", "not-allowed"),
            ("/queue/q", "/queue/ann.dead", None),
            ("/queue/q", "/exchange/x", "not-allowed"),
            ("/queue/q", "/exchange/x other", "not-allowed"),
            ("/queue/q", "/exchange/x null", "not-allowed"),
            ("/queue/q", "/exchange/x ann", "declared-otherwise"),
            ("/queue/q", "/exchange/y", "declared-otherwise"),
        ]:
            headers = {"destination": f"/control/declare{queue}"}
            target, _, key = dead_letter.partition(" ")
            keys = {"dead_letter_routing_key": None if key == "null" else key} if key else {}
            body = json.dumps({"dead_letter": target, **keys}).encode()
            try:
                await node.admin.verbs.respond(1, Principal("ann"), "here", headers, body)
                refused = None
            except Exception as error:
                refused = getattr(error, "code", repr(error))
            assert refused == code


@pytest.mark.parametrize("name", ["\ud800", "\0", "/queue/\ud800", "/exchange/\0"])
async def test_a_dead_letter_queue_that_no_frame_can_name_is_a_bad_definition(
    autojump_clock: MockClock, name: str
) -> None:
    async with Rig(users=users("client")).run() as rig:
        client = await rig.connect(login="client", passcode="secret")

        answer = await request(client, f"declare{Q}", {"dead_letter": name})

        assert answer["error-code"] == "bad-definition"


async def test_a_declaration_on_one_side_of_a_cut_wins_over_an_earlier_deletion_on_the_other(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a", max_messages="5")
        await until_alike(mesh)
        isolate(mesh, "c")
        await eventually(lambda: not mesh.nodes["c"].mesh.followers())
        client = await mesh.connect("a")
        await request(client, "definitions/delete/queue/queue/q")
        assert (await declare(mesh, "c", max_messages="5"))["changed"] == "0"

        rejoin(mesh, "c")
        await mesh.until_linked()
        await until_alike(mesh)

        assert [node.settings_parts.declared_queues.value_of(Q) for node in mesh.nodes.values()] == [
            {"max_messages": 5}
        ] * 3


async def test_two_clients_of_a_node_cannot_both_declare_it_differently(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        clients = [await mesh.connect("a") for _ in range(2)]
        for number, client in enumerate(clients):
            await client.send(send(f"/control/declare{Q}", "", "r", **{"max-messages": str(number + 1)}))

        answers = [(await client.any()).head for client in clients]

        assert sorted(head.command for head in answers) == ["ERROR", "RECEIPT"]


async def test_a_declared_dead_letter_target_replaces_the_key_of_the_policy(autojump_clock: MockClock) -> None:
    exchange = {"dead_letter": "/exchange/x", "dead_letter_routing_key": "of.policy"}
    policies = (DestinationPolicy(pattern="/queue/*", **exchange),)
    rig = Rig(destinations=DestinationSettings(policies=policies))
    async with rig.run():
        client = await rig.connect()
        targets = []
        for queue, value in (
            ("/queue/same", {}),
            ("/queue/other", {"dead_letter": "/exchange/y"}),
            ("/queue/plain", {"dead_letter": "/queue/bad"}),
            ("/queue/keyed", {"dead_letter": "/exchange/y", "dead_letter_routing_key": ""}),
        ):
            await request(client, f"declare{queue}", value)
            targets.append(rig.alive.settings_parts.policies.queue_rules(queue).dead_letter)

    assert targets == ["/exchange/x/of.policy", "/exchange/y", "/queue/bad", "/exchange/y/"]


async def test_dead_letters_of_an_exchange_are_there_once_after_a_crash_and_can_be_redriven(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await mesh.connect("a")
        await request(client, "declare/exchange/x", type="topic")
        for name, key in (("/queue/bad", "jobs.#"), ("/queue/audit", "#"), (Q, "#")):
            await request(client, f"bind{name}", source="/exchange/x", key=key)
        value = {"dead_letter": "/exchange/x", "dead_letter_routing_key": "jobs.dead"}
        assert (await request(client, f"declare{Q}", value))["changed"] == "1"
        await client.send(send(Q, "one", "r"), subscribe(Q, "s", ack="client-individual"))
        ack = (await client.next("MESSAGE")).head.headers["ack"]
        await client.send(f"NACK\nid:{ack}\nrequeue:false\nreceipt:n\n\n")
        while await client.receipt() != "n":
            pass

        await mesh.kill("a")
        await mesh.start("a")
        await mesh.until_linked()

        client = await mesh.connect("a")
        assert (await request(client, "redrive/queue/audit"))["messages"] == "1"
        for name in ("/queue/bad", Q):
            await client.send(subscribe(name, name))
            message = await client.next("MESSAGE")
            assert (message.head.headers["destination"], message.body) == (name, b"one")
        client = await mesh.connect("b")
        rows = json.loads((await request(client, "list/queue/*", scope="mesh"))["destinations"])
        assert {row["destination"]: row["messages"] for row in rows if row["messages"]} == {}


async def test_to_find_what_is_defined_of_a_queue_costs_the_same_with_any_number_of_bindings(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        works = []
        for most in (10, 1000):
            found = [Binding(f"/topic/{n}", f"/queue/{n}", "", {}) for n in range(most)]
            await rig.alive.settings_parts.definitions.change({Key("binding", one.name): one.value for one in found})
            assert rig.alive.settings_parts.declared_queues.definitions_of("/queue/1") == [
                Key("binding", "/topic/1 /queue/1")
            ]
            works.append(work_of(lambda: rig.alive.settings_parts.declared_queues.definitions_of("/queue/1")))

        assert Order.CONSTANT.allows(10, 1000, *works)


def queues_file(**dead_letters: str) -> dict[str, Any]:
    """A file of definitions: queue → where its dead letters go."""
    named = {f"/queue/{name}": {"dead_letter": value} for name, value in dead_letters.items()}
    return {"qmq_definitions": 1, "definitions": {"queue": named}}


async def test_an_import_declares_a_queue_and_its_dead_letter_queue_together(autojump_clock: MockClock) -> None:
    async with MeshRig("a", destinations=DestinationSettings(create_on_use=False)).run() as mesh:
        answer = await request(await mesh.connect("a"), "definitions/import", queues_file(q="/queue/r", r=Q))

        assert answer.get("changed") == "2"
