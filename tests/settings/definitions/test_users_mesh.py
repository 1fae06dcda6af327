"""Users and permissions of a mesh: a change on any node counts on all, for logins and for connected clients."""

import json
from collections.abc import Mapping
from typing import Any

import argon2
import pytest
import trio
from trio.testing import MockClock

from qmq.access.rules import Action, Principal
from qmq.config import PermissionSettings, User
from qmq.config.definition_values import read_user
from qmq.definitions.definition import Key
from qmq.node.node import Node
from qmq.sessions.clients.login import LOCAL
from tests.node.mesh_rig import CLIENT_PORT, MeshRig, host_of, isolate, rejoin
from tests.node.rig import Client, eventually, send, subscribe
from tests.settings.definitions.test_definitions_mesh import CONTROL, until_alike

HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
ROOT = User(name="root", password_hash=HASH, groups=("administrator",))
BOB = User(name="bob", password_hash=HASH, groups=("client",))


def mesh_of(*names: str, **settings: Any) -> MeshRig:
    """A mesh whose node files have an administrator and a client."""
    return MeshRig(*names, **{"users": (ROOT, BOB), **settings})


async def log_in(mesh: MeshRig, node: str, user: str = "root") -> Client:
    return await mesh.connect(node, login=user, passcode="secret")


async def ask(mesh: MeshRig, node: str, request: str, value: object = "", **headers: str) -> dict[str, str]:
    """The headers of the answer to the administrator."""
    client = await log_in(mesh, node)
    body = value if isinstance(value, str) else json.dumps(value)
    await client.send(send(f"{CONTROL}{request}", body, "r", **headers))
    found = dict((await client.any()).head.headers)
    client.pipe.close()
    return found


async def add(mesh: MeshRig, node: str, name: str, *groups: str) -> None:
    answer = await ask(mesh, node, f"put/user/{name}", {"password_hash": HASH, "groups": list(groups)})
    assert answer.get("changed") is not None, answer


async def define(mesh: MeshRig, node: str, name: str, verb: str = "put") -> None:
    """Define, or delete, the permission with this name."""
    subject, word, actions, pattern = name.split(" ")
    kind, _, who = subject.partition(":")
    value = {kind: who, word: actions.split(","), "destinations": [pattern]}
    answer = await ask(mesh, node, f"{verb}/permission/{name}", value if verb == "put" else "")
    assert answer.get("changed") == "1", answer


def users_of(node: Node) -> list[str]:
    return sorted(user.name for user in node.settings_parts.users.users)


async def said(client: Client, frame: str) -> str:
    """`done`, or the error-code."""
    await client.send(frame)
    headers = (await client.any()).head.headers
    return headers.get("error-code", "done")


async def test_a_user_that_one_node_adds_logs_in_on_another(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b").run() as mesh:
        await add(mesh, "a", "ann", "client")
        await until_alike(mesh)

        ann = await log_in(mesh, "b", "ann")
        assert await said(ann, send("/queue/q", "", "r")) == "done"
        assert users_of(mesh.nodes["b"]) == ["ann", "bob", "root"]

        # A user without permission, and one with permissions of its own.
        await add(mesh, "b", "eve")
        await define(mesh, "b", "user:eve allow send /queue/eve.*")
        await until_alike(mesh)
        assert await said(await log_in(mesh, "a", "eve"), send("/queue/eve.1", "", "r")) == "done"
        assert await said(await log_in(mesh, "a", "eve"), send("/queue/q", "", "r")) == "not-allowed"


async def test_a_subscription_that_another_node_denies_ends_and_loses_nothing(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b").run() as mesh:
        bob = await log_in(mesh, "a", "bob")
        assert await said(bob, subscribe("/queue/q", ack="client", receipt="r")) == "done"
        assert await said(await log_in(mesh, "a"), send("/queue/q", "one", "r")) == "done"
        assert await bob.messages(1) == [b"one"]

        await define(mesh, "b", "group:client deny subscribe /queue/q")

        error = (await bob.until_closed())[-1].head.headers
        assert (error["error-code"], error["subscription"]) == ("not-allowed", "0")
        root = await log_in(mesh, "a")
        await root.send(subscribe("/queue/q"))
        assert await root.messages(1) == [b"one"]

        await define(mesh, "a", "group:client deny subscribe /queue/q", "delete")
        await until_alike(mesh)
        assert await said(await log_in(mesh, "b", "bob"), subscribe("/queue/q", receipt="r")) == "done"


async def test_the_connections_of_a_deleted_user_end_on_every_node(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b").run() as mesh:
        clients = [await log_in(mesh, name, "bob") for name in "ab"]
        assert await said(clients[0], subscribe("/queue/q", ack="client", receipt="r")) == "done"
        assert await said(await log_in(mesh, "a"), send("/queue/q", "one", "r")) == "done"
        assert await clients[0].messages(1) == [b"one"]

        await ask(mesh, "b", "delete/user/bob")

        for client in clients:
            assert (await client.until_closed())[-1].head.headers["error-code"] == "user-removed"
        root = await log_in(mesh, "a")
        await root.send(subscribe("/queue/q"))
        assert await root.messages(1) == [b"one"]
        assert (await refusal(mesh, "a", "bob")) == "login-failed"


async def refusal(mesh: MeshRig, node: str, user: str | None) -> str:
    """The error-code of a login that is refused."""
    login = "" if user is None else f"login:{user}\npasscode:secret\n"
    client = Client(await mesh.fabric.dial("10.0.0.1", host_of(mesh.names.index(node)), CLIENT_PORT))
    await client.send(f"CONNECT\naccept-version:1.2\nhost:h\n{login}\n")
    return (await client.until_closed())[-1].head.headers["error-code"]


async def test_two_sides_of_a_cut_change_users_and_permissions(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        isolate(mesh, "c")
        await add(mesh, "a", "ann", "client")
        await define(mesh, "a", "user:ann deny send /queue/x")
        await add(mesh, "c", "cid", "client")
        await define(mesh, "c", "user:ann deny send /queue/y")
        await ask(mesh, "c", "delete/user/bob")
        rejoin(mesh, "c")
        await mesh.until_linked()
        await until_alike(mesh)

        for name, node in mesh.nodes.items():
            assert users_of(node) == ["ann", "cid", "root"]
            frames = [send(f"/queue/{queue}", "", "r") for queue in "xyz"]
            found = [await said(await log_in(mesh, name, "ann"), frame) for frame in frames]
            assert found == ["not-allowed", "not-allowed", "done"]


async def test_users_and_permissions_outlive_a_restart(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b").run() as mesh:
        await add(mesh, "a", "ann", "client")
        await define(mesh, "a", "user:ann deny send /queue/x")
        await ask(mesh, "a", "delete/user/bob")
        await until_alike(mesh)
        await mesh.kill("a")
        await mesh.stop("b", wipe=True)
        await mesh.start("a")
        await mesh.start("b")
        await mesh.until_linked()
        await until_alike(mesh)

        for name, node in mesh.nodes.items():
            assert users_of(node) == ["ann", "root"]
            assert await said(await log_in(mesh, name, "ann"), send("/queue/x", "", "r")) == "not-allowed"


async def test_permissions_of_the_file_are_definitions_one_for_each_destination(autojump_clock: MockClock) -> None:
    row = PermissionSettings(group="client", deny=("subscribe", "send"), destinations=("/queue/x", "/queue/y"))
    async with mesh_of("a", permissions=(row,)).run() as mesh:
        await define(mesh, "a", "group:client deny send,subscribe /queue/x", "delete")

        assert await said(await log_in(mesh, "a", "bob"), send("/queue/x", "", "r")) == "done"
        assert await said(await log_in(mesh, "a", "bob"), send("/queue/y", "", "r")) == "not-allowed"


async def test_the_first_user_closes_every_node_and_the_last_one_leaves_them_closed(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        here, there = await mesh.connect("a"), await mesh.connect("b")
        value = json.dumps({"password_hash": HASH, "groups": ["administrator"]})

        await here.send(send(f"{CONTROL}put/user/root", value, "r"))

        # Its own request is answered before its connection ends.
        assert [frame.head.headers.get("error-code") for frame in await here.until_closed()] == [None, "login-required"]
        assert (await there.until_closed())[-1].head.headers["error-code"] == "login-required"
        assert await refusal(mesh, "b", None) == "login-required"
        root = await log_in(mesh, "b")

        await root.send(send(f"{CONTROL}delete/user/root", "", "r"))
        assert [frame.head.headers.get("error-code") for frame in await root.until_closed()] == [None, "user-removed"]
        await until_alike(mesh)
        for node in "ab":
            assert [await refusal(mesh, node, user) for user in (None, "root", "\\0")] == [
                "login-required",
                "login-failed",
                "login-failed",
            ]
        await mesh.stop("a")
        await mesh.start("a")
        assert await refusal(mesh, "a", None) == "login-required"


async def test_a_closed_mesh_without_users_serves_the_unix_socket_and_what_anonymous_may(
    autojump_clock: MockClock,
) -> None:
    permission = {"user": "anonymous", "allow": ["send"], "destinations": ["/queue/*"]}
    async with MeshRig("a").run() as mesh:
        node = mesh.nodes["a"]
        root = Key("user", "root")
        await node.settings_parts.definitions.change({root: {"groups": ["administrator"], "password_hash": HASH}})
        await node.settings_parts.definitions.change({root: None})
        await node.settings_parts.definitions.change(
            {Key("permission", "user:anonymous allow send /queue/*"): permission}
        )

        assert node.session_parts.login_path.access.rights_of(LOCAL.principal).allows(
            Action.ADMINISTER, "/control/definitions"
        )
        assert node.session_parts.login_path.access.rights_of(None).allows(Action.SEND, "/queue/q")
        assert not node.session_parts.login_path.access.rights_of(None).allows(Action.ADMINISTER, "/queue/q")


@pytest.mark.parametrize(
    ("request_", "value", "words"),
    [
        ("put/user/ann", {"password_hash": "secret"}, "password_hash: must be an argon2 hash"),
        ("put/user/ann", {"pasword_hash": HASH}, "did you mean password_hash?"),
        ("put/user/ann", {"password": "secret"}, "no passwords in a file"),
        ("put/user/ann", {"groups": "client"}, "groups = 'client': must be a list"),
        ("put/user/ann", {"name": "eve"}, "name: must be left out"),
        ("put/user/local-administrator", {}, "must be another name"),
        ("delete/user/ann", "", "there is no user ann"),
        ("put/permission/p", {"user": "ann", "allow": ["fly"], "destinations": ["/queue/q"]}, "must be one of send"),
        ("put/permission/p", {"user": "ann", "allow": ["send"], "destinations": ["q"]}, "must be a destination under"),
        ("put/permission/p", {"user": "ann", "group": "g", "allow": ["send"]}, "permission p: must have either user"),
        ("put/permission/p", {"user": "ann", "destinations": ["/queue/q"]}, "must have either allow or deny"),
        (
            "put/permission/p",
            {"user": "ann", "allow": ["send"], "destinations": ["/queue/q", "/queue/r"]},
            "destinations: must be one",
        ),
        (
            "put/permission/p",
            {"user": "ann", "allow": ["subscribe", "send"], "destinations": ["/queue/q"]},
            "must be named as what it says: user:ann allow send,subscribe /queue/q",
        ),
        (
            "put/permission/p",
            {"group": "administrator", "deny": ["send"], "destinations": ["/*"]},
            "group: must be another group",
        ),
        (
            "put/permission/p",
            {"user": "local-administrator", "deny": ["administer"], "destinations": ["/*"]},
            "user: must be another user",
        ),
    ],
)
async def test_a_bad_user_or_permission_names_the_key_and_what_is_allowed(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, request_: str, value: object, words: str
) -> None:
    async with mesh_of("a", "b").run() as mesh:
        definitions = mesh.nodes["a"].settings_parts.definitions
        await eventually(lambda: not definitions.is_expected(Key("user", "root")))  # the file is applied
        await until_alike(mesh)
        before = definitions.table.digest

        answer = await ask(mesh, "a", request_, value)

        assert words in answer["message"]
        assert definitions.table.digest == before
        assert "secret" not in answer["message"]


@pytest.mark.parametrize("request_", ["list/user", "get/user/root", "export", "delete/user/root", "list/permission"])
@pytest.mark.parametrize("group", ["client", "operator", "observer"])
async def test_only_administrators_read_and_change_them(autojump_clock: MockClock, request_: str, group: str) -> None:
    async with mesh_of("a").run() as mesh:
        await add(mesh, "a", "ann", group)

        assert await said(await log_in(mesh, "a", "ann"), send(f"{CONTROL}{request_}", "", "r")) == "not-allowed"
        assert users_of(mesh.nodes["a"]) == ["ann", "bob", "root"]


async def test_no_hash_is_logged_or_audited(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with mesh_of("a").run() as mesh:
        watcher = await log_in(mesh, "a")
        await watcher.send(subscribe("/system/audit"))
        await add(mesh, "a", "ann", "client")

        events = [json.loads(body) for body in await watcher.messages(2)]
        assert [(one["event"], one.get("name")) for one in events] == [("login", None), ("definitions-put", "ann")]
        assert "argon2" not in json.dumps(events)
    assert "argon2" not in caplog.text


async def ask_open(client: Client, request: str, value: object = "") -> dict[str, str]:
    """The headers of the answer to a client without login."""
    await client.send(send(f"{CONTROL}{request}", json.dumps(value) if value else "", "r"))
    return dict((await client.any()).head.headers)


FIRST = {"client": {"password_hash": HASH, "groups": ["client"]}, "no password": {"groups": ["administrator"]}}


@pytest.mark.parametrize("value", FIRST.values(), ids=FIRST)
@pytest.mark.parametrize("verb", ["put", "import"])
async def test_the_first_user_must_be_able_to_change_users(
    autojump_clock: MockClock, verb: str, value: dict[str, Any]
) -> None:
    def request(users: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if verb == "import":
            return "import", {"qmq_definitions": 1, "definitions": {"user": users}}
        ((name, only),) = users.items()
        return f"put/user/{name}", only

    async with MeshRig("a", "b").run() as mesh:
        open_client = await mesh.connect("a")
        refused = await ask_open(open_client, *request({"ann": value}))
        assert (refused.get("error-code"), users_of(mesh.nodes["a"])) == ("no-administrator", [])
        assert not mesh.nodes["a"].settings_parts.definitions.table.by_key

        again = await mesh.connect("b")
        added = await ask_open(again, *request({"root": {"password_hash": HASH, "groups": ["administrator"]}}))
        assert added.get("changed") == "1", added
        await until_alike(mesh)
        await add(mesh, "a", "ann", "client")


@pytest.mark.parametrize("demoted", [False, True], ids=["deleted", "demoted"])
@pytest.mark.parametrize("order", ["ac", "ca"])
async def test_of_two_administrators_that_remove_each_other_at_once_the_later_one_stays(
    autojump_clock: MockClock, order: str, demoted: bool
) -> None:
    async with mesh_of("a", "b", "c").run() as mesh:
        await add(mesh, "a", "ann", "administrator")
        await until_alike(mesh)
        by_node = {"a": await log_in(mesh, "a", "root"), "c": await log_in(mesh, "c", "ann")}
        isolate(mesh, "c")
        for node in order:
            other = "ann" if node == "a" else "root"
            verb, body = "delete", ""
            if demoted:
                verb, body = "put", json.dumps({"password_hash": HASH, "groups": ["client"]})
            await by_node[node].send(send(f"{CONTROL}{verb}/user/{other}", body, "r"))
            assert (await by_node[node].any()).head.headers["changed"] == "1"

        rejoin(mesh, "c")
        await mesh.until_linked()
        await until_alike(mesh)

        left, gone = ("root", "ann") if order == "ca" else ("ann", "root")
        for name, node in mesh.nodes.items():
            administrators = [user.name for user in node.settings_parts.users.users if "administrator" in user.groups]
            assert administrators == [left]
            assert (gone in users_of(node)) == demoted
            await log_in(mesh, name, left)


@pytest.mark.parametrize("subject", ["user:ann", "group:ops"])
@pytest.mark.parametrize("order", ["ac", "ca"])
async def test_the_later_one_stays_also_if_a_permission_makes_it_an_administrator(
    autojump_clock: MockClock, order: str, subject: str
) -> None:
    permission = f"{subject} allow administer /control/*"
    async with mesh_of("a", "b", "c").run() as mesh:
        await define(mesh, "a", permission)
        others = [f"{subject} allow send /queue/q", "user:bob allow administer /control/*"]
        for other in others:
            await define(mesh, "a", other)
        await add(mesh, "a", "ann", "ops")
        await until_alike(mesh)
        by_node = {"a": await log_in(mesh, "a", "root"), "c": await log_in(mesh, "c", "ann")}
        requests = {"a": [permission, *others], "c": []}
        isolate(mesh, "c")
        for node in order:
            asked = [f"permission/{name}" for name in requests[node]] or ["user/root"]
            for one in asked:
                await by_node[node].send(send(f"{CONTROL}delete/{one}", "", "r"))
                assert (await by_node[node].any()).head.headers["changed"] == "1"

        rejoin(mesh, "c")
        await mesh.until_linked()
        await until_alike(mesh)

        left = "root" if order == "ca" else "ann"
        for name, node in mesh.nodes.items():
            assert ("root" in users_of(node)) == (left == "root")
            await log_in(mesh, name, left)
            ann = node.session_parts.login_path.access.rights_of(Principal("ann"))
            assert ann.allows(Action.ADMINISTER, "/control/definitions") == (left == "ann")
            # Only what makes it an administrator is written again.
            assert not ann.allows(Action.SEND, "/queue/q")
            assert not node.session_parts.login_path.access.rights_of(Principal("bob")).allows(
                Action.ADMINISTER, "/control/definitions"
            )
        versions = [one.version for one in mesh.nodes["a"].settings_parts.definitions.table.by_key.values()]
        await trio.sleep(60)
        assert [one.version for one in mesh.nodes["a"].settings_parts.definitions.table.by_key.values()] == versions


async def test_an_administrator_that_a_request_changes_and_keeps_is_as_the_request_says(
    autojump_clock: MockClock,
) -> None:
    async with mesh_of("a").run() as mesh:
        await add(mesh, "a", "ann", "administrator")
        users = {"root": {"password_hash": HASH, "groups": ["administrator", "ops"]}, "ann": {"groups": ["client"]}}

        answer = await ask(mesh, "a", "import", {"qmq_definitions": 1, "definitions": {"user": users}})

        assert answer.get("changed") == "2", answer
        assert {
            one.name: set(one.groups) for one in mesh.nodes["a"].settings_parts.users.users if one.name != "bob"
        } == {
            "root": {"administrator", "ops"},
            "ann": {"client"},
        }


async def test_a_change_that_leaves_all_administrators_writes_none_of_them_again(autojump_clock: MockClock) -> None:
    async with mesh_of("a").run() as mesh:
        await add(mesh, "a", "ann", "administrator")
        table = mesh.nodes["a"].settings_parts.definitions.table
        before = {name: table.by_key[Key("user", name)].version for name in ("root", "ann")}

        await add(mesh, "a", "carl", "client")
        await ask(mesh, "a", "delete/user/bob")

        assert {name: table.by_key[Key("user", name)].version for name in ("root", "ann")} == before


async def test_no_change_takes_the_last_administrator_from_the_users_that_stay(autojump_clock: MockClock) -> None:
    async with mesh_of("a").run() as mesh:
        for request, value in (
            ("delete/user/root", ""),
            ("put/user/root", {"password_hash": HASH, "groups": ["client"]}),
            (
                "put/permission/user:root deny administer /*",
                {"user": "root", "deny": ["administer"], "destinations": ["/*"]},
            ),
        ):
            assert (await ask(mesh, "a", request, value)).get("error-code") == "no-administrator", request

        # A group of one's own counts if it may change users.
        await define(mesh, "a", "group:keepers allow administer /*")
        await add(mesh, "a", "carl", "keepers")
        assert (await ask(mesh, "a", "delete/user/root")).get("changed") == "1"


async def test_a_change_of_one_user_reads_no_other_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(name: str, values: Mapping[str, Any]) -> User:
        read.append(name)
        return read_user(name, values)

    others = tuple(User(name=f"u{number}", groups=("client",)) for number in range(200))
    monkeypatch.setattr("qmq.config.definition_values.read_user", counted)
    async with mesh_of("a", "b", users=(ROOT, BOB, *others)).run() as mesh:
        read.clear()
        await add(mesh, "a", "ann", "client")
        await until_alike(mesh)

        assert set(read) == {"ann"}
        assert len(read) < 20
