"""`qmq users` and `qmq permissions`: what they ask of the node, and what they print."""

import json

import argon2
import pytest

from qmq.wire.stomp import Frame
from tests.cli.conftest import Run
from tests.cli.stub import StubNode, message, polite


def answers(**facts: object) -> StubNode:
    def answer(node: StubNode, got: Frame) -> bytes | None:
        if got.head.command != "SEND":
            return polite(node, got)
        return message(1, json.dumps(facts).encode())

    return StubNode(answer)


def sent(node: StubNode) -> list[tuple[dict[str, str], bytes]]:
    """The headers and the body of each request."""
    left_out = ("reply-to", "content-length")
    return [
        ({name: value for name, value in got.head.headers.items() if name not in left_out}, got.body)
        for got in node.received
        if got.head.command == "SEND"
    ]


@pytest.mark.parametrize("before", [[], [{"kind": "user", "name": "root", "value": {}}]])
def test_a_user_is_added_with_a_hash_and_never_the_password(run: Run, before: list[object]) -> None:
    with answers(kind="user", name="ann", changed=1, dry_run=False, quorum=True, definitions=before) as node:
        options = ("--passcode-stdin", "--group", "client", "--group", "billing", "--quorum")
        result = run("users", "add", "ann", *options, "--at", node.at, input="s3cret\nmore\n")

    assert result.exit_code == 0
    assert "user ann is set" in result.output
    assert ("these are the first users" in result.output) == (not before)
    assert "ann is in the group billing, which no permission names" in result.stderr
    *_, (headers, body) = sent(node)
    assert headers == {"destination": "/control/definitions/put/user/ann", "quorum": "true"}
    value = json.loads(body)
    assert value["groups"] == ["client", "billing"]
    assert argon2.PasswordHasher().verify(value["password_hash"], "s3cret")
    assert not any(b"s3cret" in body for _, body in sent(node))


def test_a_user_without_password_logs_in_with_a_certificate(run: Run) -> None:
    with answers(kind="user", name="sensor", changed=1, dry_run=False, definitions=[{}]) as node:
        result = run("users", "add", "sensor", "--at", node.at)

    assert (result.exit_code, result.output) == (0, "user sensor is set\n")
    assert json.loads(sent(node)[1][1]) == {"groups": []}


def test_an_empty_password_is_refused(run: Run) -> None:
    result = run("users", "add", "ann", "--passcode-stdin", input="\n")

    assert result.exit_code == 2
    assert "the password is empty" in result.output


@pytest.mark.parametrize("as_json", [False, True])
def test_users_are_listed_without_their_hashes(run: Run, as_json: bool) -> None:
    rows = [
        {"kind": "user", "name": "ann", "value": {"password_hash": "$argon2id$x", "groups": ["client", "g"]}},
        {"kind": "user", "name": "sensor", "value": {}},
    ]
    with answers(definitions=rows) as node:
        result = run("users", "list", "--at", node.at, *(["--json"] if as_json else []))

    assert result.exit_code == 0
    assert "argon2" not in result.output
    if as_json:
        assert json.loads(result.output)["users"] == [
            {"name": "ann", "password": True, "groups": ["client", "g"]},
            {"name": "sensor", "password": False, "groups": []},
        ]
    else:
        lines = result.output.splitlines()
        assert [lines[1].split(), lines[2].split()] == [["ann", "yes", "client", "g"], ["sensor", "no"]]


def test_a_user_is_deleted(run: Run) -> None:
    with answers(kind="user", name="ann", changed=1, dry_run=False, quorum=False) as node:
        result = run("users", "delete", "ann", "--quorum", "--at", node.at)

    assert result.exit_code == 1
    assert "user ann is deleted" in result.output and "no majority has the change yet" in result.output
    assert sent(node) == [({"destination": "/control/definitions/delete/user/ann", "quorum": "true"}, b"")]


@pytest.mark.parametrize(
    ("word", "subject", "kind", "name"),
    [
        ("allow", "ann", "user", "ann"),
        ("deny", "user:group:x", "user", "group:x"),
        ("allow", "group:billing", "group", "billing"),
        ("deny", "a:b", "user", "a:b"),
    ],
)
def test_a_permission_is_set_and_deleted(run: Run, word: str, subject: str, kind: str, name: str) -> None:
    key = f"{kind}:{name} {word} send,subscribe /queue/b.*"
    arguments = (subject, "subscribe,send", "/queue/b.*")
    with answers(kind="permission", name=key, changed=1, dry_run=False) as node:
        put = run("permissions", word, *arguments, "--at", node.at)
        deleted = run("permissions", "delete", word, *arguments, "--at", node.at)

    assert (put.output, deleted.output) == (f"permission {key} is set\n", f"permission {key} is deleted\n")
    (headers, body), (gone, _) = sent(node)
    assert headers == {"destination": f"/control/definitions/put/permission/{key}"}
    assert json.loads(body) == {kind: name, word: ["subscribe", "send"], "destinations": ["/queue/b.*"]}
    assert gone == {"destination": f"/control/definitions/delete/permission/{key}"}


def test_permissions_are_a_table(run: Run) -> None:
    value = {"group": "billing", "allow": ["send", "subscribe"], "destinations": ["/queue/b.*"]}
    other = {"user": "ann", "deny": ["send"], "destinations": ["/queue/x"]}
    with answers(definitions=[{"value": value}, {"value": other}]) as node:
        result = run("permissions", "list", "--at", node.at)

    assert [line.split() for line in result.output.splitlines()[1:]] == [
        ["allow", "group:billing", "send,subscribe", "/queue/b.*"],
        ["deny", "user:ann", "send", "/queue/x"],
    ]


@pytest.mark.parametrize("command", [("users", "delete", "ann"), ("permissions", "deny", "ann", "send", "/queue/q")])
@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_user_has_declared_and_may_not_declare_any_more_is_named(
    run: Run, command: tuple[str, ...], as_json: bool
) -> None:
    left = ["the binding /exchange/e /queue/q (declared by ann)", "and 7 more"]
    with answers(kind="user", name="ann", changed=1, dry_run=False, left_behind=left, definitions=[{}]) as node:
        result = run(*command, "--at", node.at, *(["--json"] if as_json else []))

    assert result.exit_code == 0
    if as_json:
        assert json.loads(result.stdout)["left_behind"] == left
    else:
        assert result.stdout.splitlines()[1:] == [f"stays: {line}" for line in left]
