"""What a user has declared stays when its rights are taken away, and the response to the change names it."""

import pytest
from trio.testing import MockClock

from qmq.definitions.definition import Key
from qmq.settings.routing import left_behind
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import Client, Rig, eventually
from tests.sessions.clients.test_access import may, users
from tests.settings.definitions.test_definitions_mesh import until_alike
from tests.settings.routing.test_bindings import request

ALL = "send,subscribe,declare"
PERMISSION = f"user:ann allow {ALL} /*"
STAYS = [
    "the binding /exchange/e /queue/q k (declared by ann)",
    "the alternate other of /exchange/e (declared by ann)",
    "the dead letters of /queue/d to /queue/letters (declared by ann)",
]


def rig_of(kind: type = Rig, *names: str) -> Rig | MeshRig:
    people = tuple(user.replace({"groups": ()}) for user in users("ann", "bob"))
    return kind(
        *names, users=(*people, *users("administrator")), permissions=(may("ann", ALL, "/*"), may("bob", ALL, "/*"))
    )


async def log_in(rig: Rig | MeshRig, user: str, *node: str) -> Client:
    return await rig.connect(*node, login=user, passcode="secret")


async def declare(client: Client, end: str = "") -> None:
    """A binding, an alternate and a dead letter queue."""
    await request(client, f"declare/exchange/other{end}", {"type": "fanout"})
    await request(client, f"declare/exchange/e{end}", {"type": "direct", "alternate": f"other{end}"})
    await request(client, f"bind/queue/q{end}", source=f"/exchange/e{end}", key="k")
    await request(client, f"declare/queue/d{end}", {"ttl_seconds": 5, "dead_letter": f"/queue/letters{end}"})


@pytest.mark.parametrize("change", [f"delete/permission/{PERMISSION}", "delete/user/ann", "put/user/ann"])
async def test_a_right_that_is_taken_away_names_what_its_user_has_declared(
    autojump_clock: MockClock, change: str
) -> None:
    rig = rig_of()
    async with rig.run():
        await declare(await log_in(rig, "ann"))
        await declare(await log_in(rig, "bob"), ".bob")
    async with rig.run():
        root = await log_in(rig, "administrator")
        value = {"groups": []} if change.startswith("put") else None

        tried = await request(root, f"definitions/{change}", value, dry_run="true")
        done = await request(root, f"definitions/{change}", value)

        # A user that keeps its rights in another group loses nothing.
        assert tried.get("left_behind") == done.get("left_behind") == (None if value is not None else STAYS)
        again = await request(
            root,
            f"definitions/put/permission/{PERMISSION}",
            {"user": "ann", "allow": ALL.split(","), "destinations": ["/*"]},
        )
        assert "left_behind" not in again


@pytest.mark.parametrize(
    ("action", "pattern", "stays"),
    [
        ("send", "/queue/q", STAYS[:1]),
        ("subscribe", "/exchange/e", STAYS[:2]),
        ("send", "/exchange/other/*", STAYS[1:2]),
        ("send", "/queue/letters", STAYS[2:]),
        ("declare", "/queue/*", [STAYS[0], STAYS[2]]),
        ("administer", "/*", None),
        ("send", "/queue/d", None),
    ],
)
async def test_a_denial_names_what_needs_the_right_that_it_takes_away(
    autojump_clock: MockClock, action: str, pattern: str, stays: list[str] | None
) -> None:
    rig = rig_of()
    async with rig.run():
        await declare(await log_in(rig, "ann"))
        root = await log_in(rig, "administrator")

        name = f"permission/user:ann deny {action} {pattern}"
        done = await request(
            root, f"definitions/put/{name}", {"user": "ann", "deny": [action], "destinations": [pattern]}
        )

        assert done.get("left_behind") == stays


async def test_the_last_user_that_declares_a_binding_is_its_author_on_every_node(autojump_clock: MockClock) -> None:
    mesh = rig_of(MeshRig, "a", "b", "c")
    async with mesh.run():
        await declare(await log_in(mesh, "ann", "a"))
        # To say again what is so changes no author.
        await declare(await log_in(mesh, "bob", "a"))
        nodes = mesh.nodes.values()
        key = Key("binding", "/exchange/e /queue/q k")
        await eventually(lambda: [node.settings_parts.definitions.author_of(key) for node in nodes] == ["ann"] * 3)
        bob = await log_in(mesh, "bob", "c")
        await request(bob, "unbind/queue/q", source="/exchange/e", key="k")
        await eventually(lambda: [node.settings_parts.definitions.author_of(key) for node in nodes] == [""] * 3)
        await request(bob, "bind/queue/q", source="/exchange/e", key="k")
        await eventually(lambda: [node.settings_parts.definitions.author_of(key) for node in nodes] == ["bob"] * 3)
        await request(await log_in(mesh, "administrator", "c"), "delete/queue/q")
        await until_alike(mesh)

        assert not [
            one
            for one in mesh.nodes["b"].settings_parts.definitions.table.present()
            if one.key.kind == "author of binding"
        ]


async def test_authors_that_differ_behind_a_cut_are_no_conflict(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = rig_of(MeshRig, "a", "b", "c")
    async with mesh.run():
        isolate(mesh, "a")
        for user, node in (("ann", "a"), ("bob", "b")):
            await request(await log_in(mesh, user, node), "bind/queue/q", source="/topic/t")
        rejoin(mesh, "a")
        await until_alike(mesh)

        (author,) = {
            node.settings_parts.definitions.author_of(Key("binding", "/topic/t /queue/q"))
            for node in mesh.nodes.values()
        }
        assert author in ("ann", "bob")
        assert "of two changes at once" not in caplog.text


async def test_of_much_that_stays_it_says_how_much(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_behind, "NAMED_MAX", 2)
    rig = rig_of()
    async with rig.run():
        await declare(await log_in(rig, "ann"))

        done = await request(await log_in(rig, "administrator"), "definitions/delete/user/ann")

        assert done["left_behind"] == [*STAYS[:2], "and 1 more"]


async def test_no_client_reads_or_changes_the_authors(autojump_clock: MockClock) -> None:
    rig = rig_of()
    async with rig.run():
        await declare(await log_in(rig, "ann"))
        for asked in ("list/author of binding", "get/author of binding/x", "put/author of binding/x"):
            root = await log_in(rig, "administrator")
            assert (await request(root, f"definitions/{asked}", {}))["code"] == "bad-definition", asked
        root = await log_in(rig, "administrator")
        assert "author" not in str(await request(root, "definitions/export"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("user/eve", {"groups": 5}),
        ("user/eve", {"groups": [{}]}),
        ("user/eve", {"groups": None}),
        ("permission/x", {"user": 5, "allow": 5, "destinations": 5}),
        ("permission/x", {"user": "ann", "allow": [{}], "destinations": ["/*"]}),
    ],
)
@pytest.mark.parametrize("verb", ["put", "import"])
async def test_values_of_another_type_are_refused_before_anything_is_looked_up(
    autojump_clock: MockClock, verb: str, path: str, value: dict[str, object]
) -> None:
    rig = rig_of()
    async with rig.run():
        root = await log_in(rig, "administrator")
        await declare(await log_in(rig, "ann"))
        kind, name = path.split("/")
        document = {"qmq_definitions": 1, "definitions": {kind: {name: value}}}
        asked = (f"put/{path}", value) if verb == "put" else ("import", document)

        refused = await request(root, f"definitions/{asked[0]}", asked[1])

        assert refused["code"] == "bad-definition"
