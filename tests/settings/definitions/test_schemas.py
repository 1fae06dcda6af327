"""Schemas as definitions, and SENDs to destinations whose policy or declaration names one, on whole nodes."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings
from qmq.definitions.definition import Key
from qmq.errors import Refused
from qmq.node.reload import Reloader
from qmq.settings.definitions.schemas import SCHEMAS_MAX
from qmq.wire.avro import read_schema
from tests.admin.test_connections import ask
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, eventually, nothing_more, send, subscribe
from tests.protocols.http.rig import dial, web_rig
from tests.settings.definitions.test_definitions_mesh import ask as ask_node
from tests.settings.definitions.test_definitions_mesh import conditions, until_alike, write
from tests.support.defined import changed
from tests.support.depths import depths
from tests.wire.avro.test_body import VALUE, body_of
from tests.wire.avro.test_schema import ORDER, record

AVRO = {"content_type": "avro/binary"}
GOOD = body_of(VALUE)
OTHER = record("string", name="Other")
Q = "/queue/q"
POLICY = Key("policy", Q)
SCHEMA = Key("schema", "orders")


def policies(*named: str, schema: str = "orders", **more: Any) -> DestinationSettings:
    return DestinationSettings(policies=tuple(DestinationPolicy(pattern=one, schema=schema, **more) for one in named))


@asynccontextmanager
async def node_with(*patterns: str, **settings: Any) -> AsyncIterator[Rig]:
    """A node with the schema `orders`, which policies of its file name."""
    async with web_rig(destinations=policies(*patterns, **settings)).run() as rig:
        await rig.alive.settings_parts.definitions.change({SCHEMA: ORDER})
        yield rig


def raw(destination: str, body: bytes, **headers: str) -> bytes:
    return send(destination, "", **{"content_length": str(len(body)), **AVRO, **headers}).encode() + body


async def publish(rig: Rig, destination: str, body: bytes, **headers: str) -> str:
    """`RECEIPT`, or the code of the refusal and its message."""
    client = await rig.connect(on_error="keep-open")
    await client.send(raw(destination, body, receipt="r", **headers))
    frame = await client.any()
    if frame.head.command == "ERROR":
        return f"{frame.head.headers['error-code']}: {frame.head.headers['message']}"
    return frame.head.command


async def change(rig: Rig, key: Key, value: dict[str, Any] | None) -> str:
    try:
        await rig.alive.settings_parts.definitions.change({key: value})
    except Refused as refused:
        return str(refused)
    return ""


# SENDs


@pytest.mark.parametrize("destination", [Q, "/topic/t", "/fanout/f", "/amq/queue/q"])
async def test_only_what_fits_the_schema_is_accepted(autojump_clock: MockClock, destination: str) -> None:
    async with node_with(Q, "/topic/t", "/fanout/f") as rig:
        before = rig.alive.broker.next_sequence
        for body, reason in (
            (b"", "it has no single-object encoding"),
            (b"text", "it has no single-object encoding"),
            (body_of({"f0": "x"}, OTHER), "its fingerprint is"),
            (GOOD + b"\0", "1 bytes follow the value"),
            *((GOOD[:size], "it is cut off") for size in range(10, len(GOOD))),
        ):
            told = await publish(rig, destination, body)
            assert told.startswith("bad-body: The body does not fit the schema orders: ") and reason in told, told
        assert "have the content-type avro/binary" in await publish(rig, destination, GOOD, content_type="text/plain")
        assert rig.alive.broker.next_sequence == before

        assert await publish(rig, destination, GOOD) == "RECEIPT"
        assert await publish(rig, destination, GOOD, content_type="AVRO/Binary; v=1") == "RECEIPT"


async def test_a_schema_counts_for_no_other_destination(autojump_clock: MockClock) -> None:
    async with node_with(Q) as rig:
        assert await publish(rig, "/queue/other", b"text", content_type="text/plain") == "RECEIPT"
        assert await publish(rig, "/topic/q", b"text") == "RECEIPT"


async def test_frames_before_a_refused_one_stand_and_those_behind_it_are_checked(autojump_clock: MockClock) -> None:
    # Of the same length: all have one header block, as a busy sender's have.
    bad = GOOD[:-1] + b"\x02"
    async with node_with(Q) as rig:
        client = await rig.connect(on_error="keep-open")

        await client.send(*[raw(Q, body, receipt="r") for body in (GOOD, GOOD, bad, GOOD, bad, bad)])

        told = [await client.any() for _ in range(6)]
        assert [frame.head.headers.get("error-code") for frame in told] == [
            *(None, None, "bad-body"),
            *(None, "bad-body", "bad-body"),
        ]
        assert depths(rig.alive) == {Q: 3}


async def test_many_checked_bodies_of_one_read_are_all_accepted(autojump_clock: MockClock) -> None:
    items = {"type": "array", "items": "long"}
    body = body_of([1] * 40_000, items)
    async with node_with(Q) as rig:
        await rig.alive.settings_parts.definitions.change({SCHEMA: items})
        client = await rig.connect()

        await client.send(*[raw(Q, body, receipt=str(at)) for at in range(10)])

        assert [await client.receipt() for _ in range(10)] == [str(at) for at in range(10)]


async def test_a_header_block_that_differs_in_its_destination_only_has_the_check_too(autojump_clock: MockClock) -> None:
    async with node_with("/queue/jobs.*") as rig:
        client = await rig.connect(on_error="keep-open")
        for at in range(20):
            await client.send(raw(f"/queue/jobs.{at}", GOOD, receipt="r"))
            await client.receipt()
        for at in range(20, 40):
            await client.send(raw(f"/queue/jobs.{at}", b"x"))
            assert (await client.any()).head.headers["error-code"] == "bad-body"


async def test_a_transaction_with_a_body_that_does_not_fit_appends_nothing(autojump_clock: MockClock) -> None:
    async with node_with(Q) as rig:
        client = await rig.connect(on_error="keep-open")
        held = [raw("/queue/p", b"x", transaction="t"), raw(Q, GOOD, transaction="t")]
        await client.send("BEGIN\ntransaction:t\n\n", *held)

        await client.send(raw(Q, GOOD[:-1], transaction="t"), "COMMIT\ntransaction:t\n\n")

        frames = await client.until_closed()
        assert [frame.head.headers.get("error-code") for frame in frames] == ["bad-body"]
        assert depths(rig.alive) == {}


async def test_a_batch_over_http_with_a_body_that_does_not_fit_appends_nothing(autojump_clock: MockClock) -> None:
    async with node_with(Q) as rig:
        client = await dial(rig)
        refused = await client.send("/v1/queues/q", b"x", content_type="avro/binary")
        assert (refused.status, refused.code) == (400, "bad-body")
        good, bad = (base64.b64encode(body).decode() for body in (GOOD, GOOD[:-1]))
        rows = [{"body_base64": good, "content_type": "avro/binary"}] * 300
        refused = await client.post(
            "/v1/queues/q/messages", {"messages": [*rows, {"body_base64": bad, "content_type": "avro/binary"}]}
        )
        assert (refused.status, refused.code) == (400, "bad-body")
        assert depths(rig.alive) == {}

        assert (await client.post("/v1/queues/q/messages", {"messages": rows})).status == 201
        assert (await client.send("/v1/queues/q", GOOD, content_type="avro/binary")).status == 201
        assert depths(rig.alive) == {Q: 301}


async def test_the_check_is_at_the_source_and_not_for_copies(autojump_clock: MockClock) -> None:
    fanout = DestinationPolicy(pattern="/fanout/f", children=(Q,))
    settings = DestinationSettings(policies=(fanout, *policies(Q, "/fanout/g").policies))
    async with Rig(destinations=settings).run() as rig:
        await rig.alive.settings_parts.definitions.change({SCHEMA: ORDER})
        client = await rig.connect()
        await ask(client, f"bind{Q}", source="/topic/t")
        await ask(client, "bind/queue/copies", source="/fanout/g")

        assert await publish(rig, "/fanout/f", b"text") == "RECEIPT"
        assert await publish(rig, "/topic/t", b"text") == "RECEIPT"
        assert depths(rig.alive) == {Q: 2}

        assert "bad-body" in await publish(rig, "/fanout/g", b"text")
        assert await publish(rig, "/fanout/g", GOOD) == "RECEIPT"
        assert depths(rig.alive) == {Q: 2, "/queue/copies": 1}


async def test_each_queue_that_a_message_names_checks_it(autojump_clock: MockClock) -> None:
    both = '["q","other"]'
    async with node_with(Q, "/queue/other") as rig:
        for body in (b"text", body_of({"f0": "x"}, OTHER)):
            assert "bad-body" in await publish(rig, "/queue/free", body, routing_keys=both)
        assert "bad-body" in await publish(rig, "/queue/free", GOOD, routing_keys=both, content_type="text/plain")
        assert depths(rig.alive) == {}

        assert await publish(rig, "/queue/free", GOOD, routing_keys=both) == "RECEIPT"
        assert depths(rig.alive) == {Q: 1, "/queue/other": 1, "/queue/free": 1}


async def test_dead_letters_are_not_checked(autojump_clock: MockClock) -> None:
    settings = DestinationSettings(
        policies=(DestinationPolicy(pattern="/queue/p", delivery_limit=1, dead_letter=Q), *policies(Q).policies)
    )
    async with Rig(destinations=settings).run() as rig:
        await rig.alive.settings_parts.definitions.change({SCHEMA: ORDER})
        assert await publish(rig, "/queue/p", b"text") == "RECEIPT"
        client = await rig.connect()
        await client.send(subscribe("/queue/p", ack="client-individual"))
        frame = await client.next("MESSAGE")

        await client.send(f"NACK\nid:{frame.head.headers['ack']}\n\n")

        await eventually(lambda: depths(rig.alive) == {Q: 1})


async def test_a_message_that_is_appended_already_is_confirmed_after_its_schema_has_changed(
    autojump_clock: MockClock,
) -> None:
    async with node_with(Q) as rig:
        assert await publish(rig, Q, GOOD, dedup_id="1") == "RECEIPT"
        await rig.alive.settings_parts.definitions.change({SCHEMA: OTHER})

        assert await publish(rig, Q, GOOD, dedup_id="1") == "RECEIPT"
        assert "bad-body" in await publish(rig, Q, GOOD, dedup_id="2")
        assert await publish(rig, Q, body_of({"f0": "x"}, OTHER), dedup_id="2") == "RECEIPT"
        assert depths(rig.alive) == {Q: 2}


async def test_a_changed_schema_counts_for_the_next_message(autojump_clock: MockClock) -> None:
    async with node_with(Q) as rig:
        client = await rig.connect(on_error="keep-open")
        await client.send(raw(Q, GOOD, receipt="r"))
        await client.receipt()

        await rig.alive.settings_parts.definitions.change({SCHEMA: OTHER})

        await client.send(raw(Q, GOOD, receipt="r"))
        assert (await client.any()).head.headers["error-code"] == "bad-body"


# Definitions


async def test_without_policies_that_name_a_schema_nothing_is_looked_up(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        rules = rig.alive.settings_parts.rules
        await rig.alive.settings_parts.definitions.change({SCHEMA: ORDER})
        assert rules.body_check is None

        await rig.alive.settings_parts.definitions.change({POLICY: {"schema": "orders"}})
        assert rules.body_check is not None
        assert "bad-body" in await publish(rig, Q, b"text")

        await rig.alive.settings_parts.definitions.change({POLICY: None})
        assert rules.body_check is None
        assert await publish(rig, Q, b"text") == "RECEIPT"


async def test_a_declared_queue_may_name_a_schema_from_then_on(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect(on_error="keep-open")
        assert "there is no such schema" in await change(rig, Key("queue", Q), {"schema": "orders"})
        await rig.alive.settings_parts.definitions.change({SCHEMA: ORDER})
        for _ in range(3):
            # So often that its header block is remembered.
            await client.send(raw(Q, b"text", receipt="r"))
            await client.receipt()

        assert await change(rig, Key("queue", Q), {"schema": "orders"}) == ""

        await client.send(raw(Q, b"text", receipt="r"))
        assert (await client.any()).head.headers["error-code"] == "bad-body"
        assert "schema-in-use: schema orders is named by queue /queue/q" in await change(rig, SCHEMA, None)
        assert await change(rig, Key("queue", Q), None) == ""
        assert rig.alive.settings_parts.rules.body_check is None
        assert await change(rig, SCHEMA, None) == ""
    async with rig.run():
        assert rig.alive.settings_parts.rules.body_check is None


async def test_a_restart_keeps_schemas_and_what_declarations_say_of_them(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        await rig.alive.settings_parts.definitions.change({SCHEMA: ORDER, Key("queue", Q): {"schema": "orders"}})
    async with rig.run():
        assert "bad-body" in await publish(rig, Q, b"text")
        assert await publish(rig, Q, GOOD) == "RECEIPT"
        assert "schema-in-use" in await change(rig, SCHEMA, None)


async def test_a_policy_names_a_schema_that_is_defined_before_or_with_it(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        live = rig.alive.settings_parts.definitions
        assert await change(rig, POLICY, {"schema": "orders"}) == (
            'bad-definition: policy /queue/q: schema = "orders": there is no such schema: define it first, or with it'
        )
        await live.change({SCHEMA: ORDER, POLICY: {"schema": "orders"}})
        assert "schema-in-use: schema orders is named by policy /queue/q" in await change(rig, SCHEMA, None)
        with pytest.raises(Refused, match="bad-definition"):
            await live.change({SCHEMA: None, POLICY: {"schema": "orders", "priority": 5}})

        await live.change({SCHEMA: None, POLICY: {"priority": 5}})

        assert await publish(rig, Q, b"text") == "RECEIPT"


@pytest.mark.parametrize("pattern", [Q, "/topic/*", "/fanout/f"])
async def test_a_file_may_name_a_schema_that_the_mesh_defines_later(autojump_clock: MockClock, pattern: str) -> None:
    async with web_rig(destinations=policies(pattern)).run() as rig:
        destination = pattern.replace("*", "t")
        told = await publish(rig, destination, GOOD)
        assert told.startswith(f"schema-missing: {destination} takes no message now: the schema orders is not defined")
        client = await dial(rig)
        _, kind, name = destination.split("/")
        refused = await client.send(f"/v1/{kind}s/{name}", GOOD, content_type="avro/binary")
        assert (refused.status, refused.code) == (503, "schema-missing")
        assert "schema-missing" in conditions(rig.alive)

        await rig.alive.settings_parts.definitions.change({SCHEMA: ORDER})

        assert await publish(rig, destination, GOOD) == "RECEIPT"
        assert "schema-missing" not in conditions(rig.alive)


async def test_a_reload_takes_up_the_schemas_that_the_file_names(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        node = rig.alive
        await node.settings_parts.definitions.change({SCHEMA: ORDER})
        before = node.settings
        read = changed(before, destinations=policies(Q))
        assert await Reloader(node, before, None, lambda: (read, None)).reload()
        assert "bad-body" in await publish(rig, Q, b"text")

        other = changed(before, definitions={"policy": {Q: {}}})
        assert await Reloader(node, read, None, lambda: (other, None)).reload()
        assert await publish(rig, Q, b"text") == "RECEIPT"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("a/b", ORDER, "the name must have 1 to 127 characters out of A-Z"),
        ("-a", ORDER, "the name must have"),
        ("message.avsc", ORDER, "and not be message.avsc"),
        ("x", {"type": "array", "items": "null"}, "schema x: the schema: items must be of a type whose values take"),
        ("x", record(["null", "R"]), "schema x: R.f0: R must not contain itself"),
    ],
)
async def test_a_bad_schema_names_what_is_wrong(
    autojump_clock: MockClock, name: str, value: dict[str, Any], words: str
) -> None:
    async with Rig().run() as rig:
        told = await change(rig, Key("schema", name), value)

        assert told.startswith("bad-definition: schema ") and words in told


async def test_the_number_of_schemas_is_bounded(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        await rig.alive.settings_parts.definitions.change({Key("schema", f"s{at}"): OTHER for at in range(SCHEMAS_MAX)})

        assert await change(rig, SCHEMA, ORDER) == f"too-many-definitions: There are {SCHEMAS_MAX} schemas at most."
        assert await change(rig, Key("schema", "s1"), ORDER) == ""
        assert await change(rig, Key("schema", "s2"), None) == ""
        assert await change(rig, SCHEMA, ORDER) == ""


async def test_a_schema_of_a_later_version_is_missing_and_keeps_its_name(autojump_clock: MockClock) -> None:
    rig = Rig(destinations=policies(Q))
    async with rig.run():
        await rig.alive.settings_parts.definitions.change({SCHEMA: ORDER})
        write(rig.alive, "schema", "orders", '{"type":"later"}', 2**60)
        await rig.alive.engine.path.flushed()
    async with rig.run():
        assert "schema-missing" in await publish(rig, Q, GOOD)
        assert "schema-missing" in conditions(rig.alive)
        assert await change(rig, POLICY, {"schema": "orders"}) == ""


async def test_all_nodes_follow_a_schema_and_an_import_has_it_with_its_policy(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        document = {
            "qmq_definitions": 1,
            "definitions": {"policy": {Q: {"schema": "orders"}}, "schema": {"orders": ORDER}},
        }
        assert (await ask_node(mesh, "a", "import", document))["changed"] == "2"
        await until_alike(mesh)
        client = await mesh.connect("b", on_error="keep-open")

        await client.send(raw(Q, b"text"))
        assert (await client.any()).head.headers["error-code"] == "bad-body"
        await client.send(raw(Q, GOOD, receipt="r"))
        await client.receipt()

        exported = json.loads((await ask_node(mesh, "b", "export"))["document"])
        assert exported["definitions"]["schema"] == {"orders": ORDER}


# The web port


async def test_any_client_that_is_logged_in_can_read_a_schema_as_it_was_defined(autojump_clock: MockClock) -> None:
    async with node_with(Q) as rig:
        client = await dial(rig)

        found = await client.get("/v1/schemas/orders")

        assert (found.status, found.facts) == (200, ORDER)
        assert found.headers["content-type"] == "application/json"
        assert read_schema(found.facts).fingerprint == read_schema(ORDER).fingerprint
        unknown = await client.get("/v1/schemas/other")
        assert (unknown.status, unknown.code) == (404, "unknown-schema")
        assert (await client.get("/v1/schemas/message.avsc")).status == 200


async def test_the_content_type_travels(autojump_clock: MockClock) -> None:
    async with node_with(Q) as rig:
        client: Client = await rig.connect()
        await client.send(subscribe(Q), raw(Q, GOOD))

        frame = await client.next("MESSAGE")

        assert (frame.head.headers["content-type"], frame.body) == ("avro/binary", GOOD)
        await nothing_more(client)
