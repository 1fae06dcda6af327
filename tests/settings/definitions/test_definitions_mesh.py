"""Definitions of a mesh: any node accepts a change, every node has it, and restarts, cuts and absences lose nothing."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.broker.consumers.outcome import Outcome
from qmq.config import DestinationSettings
from qmq.definitions.definition import Definition, Key, Version
from qmq.definitions.table import DefinitionTable, Obsolete
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.dots import Origin
from qmq.node.node import Node
from qmq.replication.protocol.frames import PeerRequest
from qmq.settings.definitions.live import QUORUM_SECONDS, SPREAD_SECONDS
from qmq.settings.definitions.sync import DefinitionSync
from qmq.storage.format.definition_record import pack_definition
from qmq.storage.format.record import RecordKind
from tests.mesh.repair.test_catch_up import forget_the_past, short_lived
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import eventually, send, subscribe

Q = "/queue/q"
CONTROL = "/control/definitions/"


async def ask(mesh: MeshRig, name: str, request: str, body: object = "", **headers: str) -> dict[str, str]:
    """The headers of the answer: of the RECEIPT, or of the ERROR."""
    client = await mesh.connect(name)
    text = body if isinstance(body, str) else json.dumps(body)
    await client.send(send(f"{CONTROL}{request}", text, "r", **headers))
    frame = await client.any()
    client.pipe.close()
    return dict(frame.head.headers)


async def put(mesh: MeshRig, name: str, pattern: str = Q, **values: Any) -> dict[str, str]:
    answer = await ask(mesh, name, f"put/policy{pattern}", values)
    assert answer.get("changed") is not None, answer
    return answer


def limit_of(node: Node, destination: str = Q) -> int:
    """The delivery limit that applies on this node."""
    return node.settings_parts.policies.queue_rules(destination).delivery_limit


async def until_alike(mesh: MeshRig) -> None:
    """Until every node has the same definitions and the same records."""
    nodes = list(mesh.nodes.values())
    await eventually(lambda: len({node.settings_parts.definitions.table.digest for node in nodes}) == 1)
    await eventually(
        lambda: all(one.engine.path.durable_vector() == nodes[0].engine.path.durable_vector() for one in nodes)
    )


@asynccontextmanager
async def unnoticed_cut(mesh: MeshRig, changes: Mapping[Key, Any]) -> AsyncIterator[None]:
    """Node a makes `changes` of which c does not hear, and c has not noticed that. At the end all are alike again."""
    isolate(mesh, "c")
    await mesh.nodes["a"].settings_parts.definitions.change(changes)
    await trio.sleep(0.5)
    assert len(mesh.nodes["c"].mesh.followers()) == 2
    yield
    rejoin(mesh, "c")
    await mesh.until_linked()
    await until_alike(mesh)


def conditions(node: Node) -> list[str]:
    return [one.code for one in node.conditions.present()]


def write(node: Node, kind: str, name: str, text: str | None, time_us: int = 1) -> None:
    """A change that this node does not check."""
    out = Outcome(now_us=node.environment.now_us())
    change = Definition(Key(kind, name), Version(time_us, 0, node.origin, node.broker.next_sequence), text)
    node.broker.note_fact(RecordKind.DEFINITION, pack_definition(change), out.now_us, out)
    node.engine.path.submit(out)


@pytest.mark.parametrize("text", ["{", "5", "[1]", '{"a":' * 5000 + "1" + "}" * 5000], ids=lambda text: text[:5])
@pytest.mark.parametrize("kind", ["policy", "pause-delivery"])
async def test_a_record_that_is_no_definition_stops_no_node(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, kind: str, text: str
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await put(mesh, "b", "/queue/other", delivery_limit=7)
        await until_alike(mesh)
        write(mesh.nodes["b"], kind, Q, text)
        await eventually(lambda: "bad-batch: link with b" in caplog.text)

        for name in "ab":
            await mesh.kill(name)
        for name in "ab":
            await mesh.start(name)
            client = await mesh.connect(name)
            await client.send(send(Q, "x", "r"))
            await client.receipt()
            assert limit_of(mesh.nodes[name], "/queue/other") == 7


async def test_a_stored_value_that_is_not_readable_is_no_policy_and_no_pause(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        await put(mesh, "a", "/queue/other", delivery_limit=7)
        node = mesh.nodes["a"]
        for sequence, kind in enumerate(("policy", "pause-delivery"), 1):
            node.settings_parts.definitions.merge(
                Definition(Key(kind, Q), Version(1, 0, Origin("b", 1), sequence), "[1]")
            )
        node.settings_parts.definitions.publish()

        client = await mesh.connect("a")
        await client.send(send(Q, "x", "r"))
        await client.receipt()

        assert limit_of(node) == 20
        assert "policies-unfit" in conditions(node)


async def test_a_change_on_one_node_applies_on_all(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        answer = await put(mesh, "a", delivery_limit=7)
        await until_alike(mesh)

        assert answer["changed"] == "1"
        assert [limit_of(node) for node in mesh.nodes.values()] == [7, 7, 7]
        assert (await ask(mesh, "c", f"get/policy{Q}"))["value"] == '{"delivery_limit":7}'

        await ask(mesh, "b", f"delete/policy{Q}")
        await until_alike(mesh)

        assert [limit_of(node) for node in mesh.nodes.values()] == [20, 20, 20]
        assert (await ask(mesh, "a", f"get/policy{Q}"))["error-code"] == "unknown-definition"


async def test_the_same_value_again_is_no_change(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        await put(mesh, "a", delivery_limit=7)
        before = mesh.nodes["a"].engine.path.durable_vector()

        assert (await put(mesh, "a", delivery_limit=7))["changed"] == "0"
        assert mesh.nodes["a"].engine.path.durable_vector() == before


@pytest.mark.parametrize(
    ("request_", "body", "words"),
    [
        ("put/policy/queue/q", {"delivery_limit": "5"}, "delivery_limit = '5': must be a whole number"),
        ("put/policy/queue/q", {"delivery_limt": 5}, "did you mean delivery_limit?"),
        ("put/policy/queue/q", {"retention_bytes": 5}, "a queue keeps a message until it is settled"),
        ("put/policy/queue/q", {"locked": True}, "locked: unknown key"),
        ("put/policy/queue/q", {"receipt": "replicas=2"}, "must be at most replicas=1"),
        ("put/policy/fanout/f", {"children": ["/topic/t"]}, "must be a queue"),
        ("put/policy/queue/q", [], "must be a JSON object"),
        ("put/policy/queue/q", "{", "must be a JSON object"),
        (
            "put/policies/queue/q",
            {},
            "one of archive, binding, exchange, limit, pause, pause-acceptance, pause-delivery, permission",
        ),
        ("put/policy/que/q", {}, "must be a destination under"),
        ("put/policy/queue/q", '{"a":' * 900 + "1" + "}" * 900, "more than 20 objects and arrays in each other"),
        ("put/policy/queue/q", {"\ud800": 1}, "surrogates not allowed"),
        ("put/policy/queue/q\\nFORGED", {}, r"'/queue/q\nFORGED': a name has printable characters only"),
        ("delete/policy/queue/q", "", "there is no policy /queue/q"),
        (
            "list/colour",
            "",
            "one of archive, binding, exchange, limit, pause, pause-acceptance, pause-delivery, permission",
        ),
        ("find/policy", "", "/control/definitions/put/KIND/NAME, "),
        ("import", {"qmq_definitions": 2}, "reads 1, not 2"),
        (
            "import",
            {"qmq_definitions": 1, "definitions": {"pause-delivery": {"/queue/\ud800": {}}}},
            "surrogates not allowed",
        ),
        ("import", {"what": 2}, "no definitions"),
        ("import", {"qmq_definitions": 1, "definitions": {"policy": {Q: 1}}}, "must be an object of keys"),
    ],
)
async def test_a_bad_request_names_the_key_and_what_is_allowed(
    autojump_clock: MockClock, request_: str, body: object, words: str
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        before = mesh.nodes["a"].engine.path.durable_vector()

        answer = await ask(mesh, "a", request_, body)

        assert words in answer["message"]
        assert mesh.nodes["a"].engine.path.durable_vector() == before
        assert not mesh.nodes["a"].settings_parts.definitions.table.by_key


async def test_an_import_is_all_or_nothing(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        good = {f"/queue/{number}": {"delivery_limit": number} for number in range(1, 30)}
        bad = {**good, "/queue/x": {"delivery_limit": -1}}

        answer = await ask(mesh, "a", "import", {"qmq_definitions": 1, "definitions": {"policy": bad}})
        assert "policy /queue/x: delivery_limit = -1: must be at least 0" in answer["message"]
        assert not mesh.nodes["a"].settings_parts.definitions.table.by_key

        document = {"qmq_definitions": 1, "definitions": {"policy": good}}
        dry = await ask(mesh, "a", "import", document, **{"dry-run": "true"})
        assert (dry["definitions"], dry["dry-run"]) == ("29", "true")
        assert not mesh.nodes["a"].settings_parts.definitions.table.by_key

        await ask(mesh, "a", "import", document)
        await until_alike(mesh)
        assert json.loads((await ask(mesh, "b", "export"))["document"]) == document


async def test_a_killed_node_keeps_what_it_answered(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        await put(mesh, "a", delivery_limit=7)
        await mesh.kill("a")
        await mesh.start("a")
        assert limit_of(mesh.nodes["a"]) == 7

        await mesh.nodes["a"].engine.checkpoints.checkpoint()
        await put(mesh, "a", delivery_limit=8)
        await put(mesh, "a", "/queue/r", delivery_limit=9)
        await mesh.kill("a")
        await mesh.start("a")
        assert (limit_of(mesh.nodes["a"]), limit_of(mesh.nodes["a"], "/queue/r")) == (8, 9)


async def test_the_later_of_two_concurrent_changes_wins_on_all_nodes(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        isolate(mesh, "c")
        await put(mesh, "c", delivery_limit=3)
        await put(mesh, "a", delivery_limit=7)
        rejoin(mesh, "c")
        await mesh.until_linked()
        await until_alike(mesh)

        assert [limit_of(node) for node in mesh.nodes.values()] == [7, 7, 7]


async def test_the_change_that_loses_is_an_event_on_every_node(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        watchers = [await mesh.connect(name) for name in "ab"]
        for watcher in watchers:
            await watcher.send(subscribe("/system/events"))
        mesh.cut("a", "b")
        await put(mesh, "b", delivery_limit=3)
        await put(mesh, "a", delivery_limit=7)
        mesh.heal("a", "b")
        await until_alike(mesh)

        for watcher in watchers:
            event = {"event": ""}
            while event["event"] != "definition-conflict":
                event = json.loads((await watcher.next("MESSAGE")).body)
            facts = {key: event[key] for key in ("kind", "name", "kept_from", "lost_from")}
            assert facts == {"kind": "policy", "name": Q, "kept_from": "a", "lost_from": "b"}


async def test_a_change_with_quorum_is_answered_when_a_majority_has_it(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        isolate(mesh, "c")

        answer = await ask(mesh, "a", f"put/policy{Q}", {"delivery_limit": 7}, quorum="true")

        assert answer["quorum"] == "true"
        assert limit_of(mesh.nodes["b"]) == 7
        alone = await ask(mesh, "c", f"put/policy{Q}", {"delivery_limit": 8}, quorum="true")
        assert alone["quorum"] == "false"
        assert limit_of(mesh.nodes["c"]) == 8
        assert QUORUM_SECONDS > 0


async def test_a_node_that_was_away_gets_a_change_that_has_left_the_journal(autojump_clock: MockClock) -> None:
    async with short_lived().run() as mesh:
        await put(mesh, "a", delivery_limit=7)
        await put(mesh, "a", "/queue/r", delivery_limit=9)
        await until_alike(mesh)
        await mesh.stop("b")
        await put(mesh, "a", delivery_limit=8)
        await ask(mesh, "a", "delete/policy/queue/r")
        await mesh.nodes["a"].engine.checkpoints.checkpoint()

        await mesh.start("b")

        # Before its journal has caught up: no client was served before.
        assert limit_of(mesh.nodes["b"]) == 8
        assert limit_of(mesh.nodes["b"], "/queue/r") == 20
        await mesh.until_linked()
        await mesh.kill("b")
        await mesh.start("b")
        assert limit_of(mesh.nodes["b"]) == 8


async def test_a_snapshot_of_the_range_has_the_definitions(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the levelling of tables, which would bring them, too."""
    monkeypatch.setattr(DefinitionSync, "_pull", never)
    async with short_lived().run() as mesh:
        await put(mesh, "a", delivery_limit=7)
        await until_alike(mesh)
        await mesh.stop("b")
        await put(mesh, "a", delivery_limit=8)
        await forget_the_past(mesh, "a")

        await mesh.start("b")
        await mesh.until_linked()

        await eventually(lambda: limit_of(mesh.nodes["b"]) == 8)


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense",
        b"[]",
        b'{"rows": []}',
        # Each with a single fault.
        b'{"rows": [1], "next": null, "is_same": false, "stable": {}}',
        b'{"rows": [["policy", "/queue/q", "[]", [1, 0, "b", 1, 1], null]], "next": null,'
        b' "is_same": false, "stable": {}}',
        b'{"rows": [["policy", "/queue/q", "{}", [1, 0], null]], "next": null, "is_same": false, "stable": {}}',
        b'{"rows": [], "next": 7, "is_same": false, "stable": {}}',
        b'{"rows": [], "next": ["a", 7], "is_same": false, "stable": {}}',
        b'{"rows": [], "next": ["", ""], "is_same": false, "stable": {}}',
        b'{"rows": [], "next": null, "is_same": false, "stable": {"b": 1}}',
        b'{"rows": [], "next": null, "stable": {}}',
    ],
)
async def test_an_invalid_response_of_a_peer_is_logged_and_changes_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: bytes
) -> None:
    answer_of = PeerRpc._answer

    async def invalid(rpc: PeerRpc, request: PeerRequest) -> bytes:
        return answer if request.kind == "definitions" else await answer_of(rpc, request)

    monkeypatch.setattr(PeerRpc, "_answer", invalid)
    async with MeshRig("a", "b").run() as mesh:
        await mesh.until_linked()
        await put(mesh, "a", delivery_limit=7)

        await eventually(lambda: limit_of(mesh.nodes["b"]) == 7)

        assert "invalid reply to a request of the kind definitions" in caplog.text


async def never(sync: DefinitionSync, peer: str) -> bool:
    """No answer of the peer."""
    return False


async def test_a_new_disk_gets_everything_and_keeps_it(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await put(mesh, "a", delivery_limit=7)
        await put(mesh, "b", "/queue/r", delivery_limit=9)
        await until_alike(mesh)
        await mesh.stop("c", wipe=True)
        await mesh.start("c")
        assert limit_of(mesh.nodes["c"]) == 7
        await mesh.until_linked()
        isolate(mesh, "c")
        await mesh.kill("c")
        await mesh.start("c")

        assert (limit_of(mesh.nodes["c"]), limit_of(mesh.nodes["c"], "/queue/r")) == (7, 9)
        assert "definitions-behind" in conditions(mesh.nodes["c"])
        rejoin(mesh, "c")
        await eventually(lambda: "definitions-behind" not in conditions(mesh.nodes["c"]))


async def test_a_definition_without_record_is_recorded_again(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await put(mesh, "a", delivery_limit=7)
        await until_alike(mesh)
        table = mesh.nodes["b"].settings_parts.definitions.table
        # As if the incarnation that wrote it were collected before b joined.
        table.forget(Obsolete(list(table.by_key.values())))
        table.digest = 0
        mesh.cut("a", "b")
        await eventually(lambda: mesh.link("b", "a") != "caught-up")
        mesh.heal("a", "b")
        await eventually(lambda: table.get(Key("policy", Q)) is not None)
        await until_alike(mesh)

        await eventually(lambda: not mesh.nodes["b"].settings_parts.definitions.unrecorded)
        await eventually(lambda: mesh.nodes["b"].engine.path.durable_vector()[mesh.nodes["b"].origin] == 3)


async def test_a_tombstone_goes_when_every_member_has_it_and_not_before(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", stored={"journal_age_seconds_max": 1}).run() as mesh:
        await put(mesh, "a", delivery_limit=7)
        await until_alike(mesh)
        old = mesh.nodes["a"].settings_parts.definitions.table.by_key[Key("policy", Q)]
        isolate(mesh, "b")
        await ask(mesh, "a", f"delete/policy{Q}")
        await trio.sleep(5)
        for _ in range(3):
            await mesh.nodes["a"].engine.checkpoints.checkpoint()
        assert len(mesh.nodes["a"].settings_parts.definitions.table.tombstones()) == 1

        rejoin(mesh, "b")
        await mesh.until_linked()
        await until_alike(mesh)
        await trio.sleep(5)
        for name in "abab":
            await mesh.nodes[name].engine.checkpoints.checkpoint()

        for name in "ab":
            assert not mesh.nodes[name].settings_parts.definitions.table.tombstones()
            await mesh.kill(name)
            await mesh.start(name)
            assert not mesh.nodes[name].settings_parts.definitions.table.tombstones()
            assert limit_of(mesh.nodes[name]) == 20
            assert not mesh.nodes[name].settings_parts.definitions.merge(old), (
                "as a node that joins now would pass it on"
            )


async def test_a_deleted_definition_that_a_new_node_read_from_an_old_journal_is_deleted_again(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await put(mesh, "a", delivery_limit=7)
        await put(mesh, "a", "/queue/other", delivery_limit=8)
        await until_alike(mesh)
        # As if it were deleted, and the incarnation with its tombstone collected, before b joined.
        table = mesh.nodes["a"].settings_parts.definitions.table
        old = table.by_key[Key("policy", Q)]
        table.forget(Obsolete([old], {old.version.origin: old.version.sequence + 1}))
        table.digest = DefinitionTable(table.present()).digest
        mesh.cut("a", "b")
        await eventually(lambda: mesh.link("b", "a") != "caught-up")
        mesh.heal("a", "b")
        await eventually(lambda: mesh.nodes["b"].settings_parts.definitions.table.get(old.key) is None)
        await until_alike(mesh)

        assert [limit_of(mesh.nodes["b"]), limit_of(mesh.nodes["b"], "/queue/other")] == [20, 8]
        await put(mesh, "b", delivery_limit=9)
        await until_alike(mesh)
        assert [limit_of(node) for node in mesh.nodes.values()] == [9, 9]


async def test_changes_that_do_not_fit_together_leave_the_later_one_out_everywhere(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", destinations=DestinationSettings(create_on_use=False)).run() as mesh:
        await put(mesh, "a", "/queue/y", delivery_limit=5)
        await until_alike(mesh)
        mesh.cut("a", "b")
        await put(mesh, "a", "/queue/x", dead_letter="/queue/y")
        await ask(mesh, "b", "delete/policy/queue/y")
        mesh.heal("a", "b")
        await until_alike(mesh)

        for node in mesh.nodes.values():
            assert node.settings_parts.policies.queue_rules("/queue/x").dead_letter == "/queue/dead-letters"
            assert "policies-unfit" in conditions(node)
        await put(mesh, "a", "/queue/y", delivery_limit=5)
        await until_alike(mesh)
        for node in mesh.nodes.values():
            assert node.settings_parts.policies.queue_rules("/queue/x").dead_letter == "/queue/y"
            assert "policies-unfit" not in conditions(node)


async def test_all_that_wait_for_the_copies_of_linked_peers_go_on_when_these_have_them(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        definitions = mesh.nodes["a"].settings_parts.definitions
        waited: list[float] = []

        async def bind(number: int) -> None:
            await definitions.change({Key("exchange", f"e{number}"): {"type": "direct"}})
            began = trio.current_time()
            await definitions.spread()
            waited.append(trio.current_time() - began)
            assert all(f"e{number}" in node.settings_parts.routing.table.exchanges for node in mesh.nodes.values())

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(bind, number)

        assert max(waited) < SPREAD_SECONDS / 2


async def test_peers_that_are_not_linked_are_not_waited_for(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run_apart("a") as mesh:
        definitions = mesh.nodes["a"].settings_parts.definitions
        await definitions.change({Key("exchange", "e"): {"type": "direct"}})
        began = trio.current_time()

        await definitions.spread()

        assert trio.current_time() == began
