"""`qmq definitions` and `qmq policies`: what they ask of the node, and what they print."""

import json
import re
from pathlib import Path

import pytest

from qmq.cli.admin.request import read_values
from qmq.config.keys import keys_of
from qmq.wire.stomp import Frame
from tests.cli.conftest import Run
from tests.cli.stub import StubNode, frame, message, polite

Q = "/queue/jobs.*"
FILE = {"qmq_definitions": 1, "definitions": {"policy": {Q: {"delivery_limit": 5}}}}


def answers(**facts: object) -> StubNode:
    def answer(node: StubNode, got: Frame) -> bytes | None:
        if got.head.command != "SEND":
            return polite(node, got)
        return message(1, json.dumps(facts).encode())

    return StubNode(answer)


def sent(node: StubNode) -> tuple[dict[str, str], bytes]:
    got = next(got for got in node.received if got.head.command == "SEND")
    headers = {name: value for name, value in got.head.headers.items() if name not in ("reply-to", "content-length")}
    return headers, got.body


def test_a_policy_is_set(run: Run) -> None:
    with answers(kind="policy", name=Q, changed=1, dry_run=False, quorum=True) as node:
        values = ("delivery_limit=5", "dead_letter=/queue/bad", "durable=false")
        result = run("policies", "set", Q, *values, "--quorum", "--at", node.at)

    assert (result.exit_code, result.output) == (0, f"policy {Q} is set\n")
    headers, body = sent(node)
    assert headers == {"destination": f"/control/definitions/put/policy{Q}", "quorum": "true"}
    assert json.loads(body) == {"delivery_limit": 5, "dead_letter": "/queue/bad", "durable": False}


def test_the_keys_of_a_kind_are_shown_with_what_they_mean(run: Run) -> None:
    with answers(kind="policy", keys=keys_of("policy")) as node:
        result = run("definitions", "keys", "policy", "--at", node.at)

    assert result.exit_code == 0
    assert sent(node)[0] == {"destination": "/control/definitions/keys/policy"}
    assert re.search(r"^overflow +text, refuse, drop-oldest, drop-newest +refuse +At the bound", result.output, re.M)
    assert re.search(r"^redelivery_seconds_min +number, more than 0 +0\.1 +Pause", result.output, re.M)


@pytest.mark.parametrize(
    ("options", "changed", "text"),
    [
        (("--dry-run",), 1, "would be deleted"),
        (("--dry-run",), 0, "was so before"),
        ((), 1, "is deleted"),
        ((), 0, "was so before"),
    ],
)
def test_a_policy_is_deleted(run: Run, options: tuple[str, ...], changed: int, text: str) -> None:
    with answers(kind="policy", name=Q, changed=changed, dry_run=bool(options)) as node:
        result = run("policies", "delete", Q, "--at", node.at, *options)

    assert (result.exit_code, result.output) == (0, f"policy {Q} {text}\n")
    assert sent(node)[0].get("dry-run") == ("true" if options else None)


def test_a_change_without_a_majority_ends_with_exit_code_1(run: Run) -> None:
    with answers(kind="policy", name=Q, changed=1, dry_run=False, quorum=False) as node:
        result = run("policies", "delete", Q, "--quorum", "--at", node.at, "--json")

    assert result.exit_code == 1
    assert "no majority has the change yet" in result.output


@pytest.mark.parametrize("arguments", [("set", "jobs"), ("set", Q, "delivery_limit"), ("delete", "/temp-queue/x")])
def test_a_mistake_of_the_command_line_has_exit_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("policies", *arguments).exit_code == 2


def test_policies_are_a_table(run: Run) -> None:
    rows = [{"kind": "policy", "name": Q, "value": {"delivery_limit": 5, "dead_letter": ""}}]
    with answers(definitions=rows) as node:
        result = run("policies", "list", "--at", node.at)

    assert result.exit_code == 0
    assert result.output.splitlines()[1].split() == [Q, "delivery_limit=5", "dead_letter="]


def test_the_rules_of_a_destination_are_a_table_with_their_sources(run: Run) -> None:
    one = {"kind": "policy", "name": "/queue/*", "value": {"priority": 5}, "from": "the node file of a"}
    rules = [{"key": "priority", "value": 5, "from": "policy /queue/*"}, {"key": "receipt", "value": None, "from": "x"}]
    with answers(definitions=[one], rules=rules) as node:
        result = run("policies", "of", Q, "--at", node.at)

    assert result.output.splitlines()[0] == "policy /queue/*: from the node file of a"
    assert [line.split() for line in result.output.splitlines()[2:]] == [
        ["priority", "5", "policy", "/queue/*"],
        ["receipt", "-", "x"],
    ]
    assert run("policies", "of", "jobs").exit_code == 2


def test_an_export_can_be_compared_with_a_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    with answers(document=FILE) as node:
        file.write_text(run("definitions", "export", "--at", node.at).output)
        same = run("definitions", "diff", str(file), "--at", node.at)
        file.write_text(json.dumps({"qmq_definitions": 1, "definitions": {"policy": {"/queue/x": {"ttl_seconds": 3}}}}))
        other = run("definitions", "diff", str(file), "--at", node.at)
        as_json = run("definitions", "diff", str(file), "--at", node.at, "--json")

    assert (same.exit_code, same.output) == (0, "")
    assert other.exit_code == 1
    assert other.output.splitlines() == [
        f'policy {Q}: {{"delivery_limit": 5}} → -',
        'policy /queue/x: - → {"ttl_seconds": 3}',
    ]
    assert [row["name"] for row in json.loads(as_json.output)["differences"]] == [Q, "/queue/x"]


def test_an_import_lists_what_is_left_out(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(FILE))
    with answers(definitions=1, changed=1, left_out=["users: ann: has no counterpart"], dry_run=False) as node:
        result = run("definitions", "import", str(file), "--at", node.at)

    assert result.output == "left out: users: ann: has no counterpart\n1 definitions, 1 changed\n"
    assert sent(node) == ({"destination": "/control/definitions/import"}, file.read_bytes())


def test_an_export_is_json_with_and_without_the_option(run: Run) -> None:
    with answers(document=FILE) as node:
        results = [run("definitions", "export", "--at", node.at, *option) for option in ((), ("--json",))]

    assert [json.loads(result.output) for result in results] == [FILE, FILE]
    assert [result.exit_code for result in results] == [0, 0]


@pytest.mark.parametrize(("present", "is_said"), [([], True), ([{"name": "root", "value": {}}], False)])
def test_an_import_of_the_first_users_says_that_the_mesh_is_closed_from_then_on(
    run: Run, tmp_path: Path, present: list[object], is_said: bool
) -> None:
    def answer(node: StubNode, got: Frame) -> bytes | None:
        if got.head.command != "SEND":
            return polite(node, got)
        is_list = got.head.headers["destination"].endswith("/list/user")
        facts = {"definitions": present} if is_list else {"definitions": 1, "changed": 1, "left_out": []}
        return message(1, json.dumps(facts).encode())

    file = tmp_path / "rabbit.json"
    file.write_text(json.dumps({"rabbit_version": "3.10.8", "users": [{"name": "ann", "tags": []}]}))
    with StubNode(answer) as node:
        result = run("definitions", "import", str(file), "--at", node.at)

    assert result.stdout == "1 definitions, 1 changed\n"
    assert ("these are the first users" in result.stderr) == is_said


@pytest.mark.parametrize("options", [(), ("--json",), ("--dry-run",)])
def test_an_import_of_nothing_fails(run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    file = tmp_path / "rabbit.json"
    file.write_text(json.dumps({"queues": [{"name": "a", "vhost": "nowhere"}]}))
    with answers(definitions=0, changed=0, left_out=["queues: a"], dry_run=False) as node:
        result = run("definitions", "import", str(file), "--at", node.at, *options)

    assert result.exit_code == 1 and "queues: a" in result.stdout
    assert "nothing of this file was imported" in result.stderr


def test_a_value_that_is_nested_too_deeply_is_text() -> None:
    assert read_values(("ttl_seconds=" + "[" * 100_000,)) == {"ttl_seconds": "[" * 100_000}


@pytest.mark.parametrize("values", [(), ("ttl_seconds=1", "ttl_seconds=2")])
def test_a_policy_without_values_or_with_one_key_twice_is_a_mistake_of_the_command_line(
    run: Run, values: tuple[str, ...]
) -> None:
    assert run("policies", "set", Q, *values).exit_code == 2


def test_a_diff_shows_no_password_hash(run: Run, tmp_path: Path) -> None:
    def document(**users: str) -> dict[str, object]:
        found = {name: {"password_hash": text, "groups": [text]} for name, text in users.items()}
        return {"qmq_definitions": 1, "definitions": {"user": found}}

    file = tmp_path / "file.json"
    file.write_text(json.dumps(document(ann="hash1", bob="hash2")))
    with answers(document=document(ann="hash3")) as node:
        text = run("definitions", "diff", str(file), "--at", node.at)
    with answers(document=document(ann="hash3")) as node:
        rows = json.loads(run("definitions", "diff", str(file), "--at", node.at, "--json").stdout)["differences"]

    assert text.exit_code == 1
    for secret in ("hash1", "hash2", "hash3"):
        assert f'"password_hash": "{secret}"' not in text.stdout
    assert [(row["mesh"] or {}).get("password_hash") for row in rows] == ["hidden", None]
    assert [row["file"]["password_hash"] for row in rows] == ["hidden, another", "hidden"]


def test_a_diff_says_why_an_import_would_refuse_the_file(run: Run, tmp_path: Path) -> None:
    def answer(node: StubNode, got: Frame) -> bytes | None:
        if got.head.command != "SEND":
            return polite(node, got)
        if got.head.headers["destination"].endswith("/export"):
            return message(1, json.dumps({"document": FILE}).encode())
        assert got.head.headers["dry-run"] == "true"
        return frame("ERROR", [("message", "policy /queue/x: unknown key ttl"), ("error-code", "bad-definition")])

    file = tmp_path / "file.json"
    file.write_text(json.dumps({"qmq_definitions": 1, "definitions": {"policy": {"/queue/x": {"ttl": 1}}}}))
    with StubNode(answer) as node:
        result = run("definitions", "diff", str(file), "--at", node.at)

    assert result.exit_code == 1
    assert 'policy /queue/x: - → {"ttl": 1}' in result.stdout
    assert "policy /queue/x: unknown key ttl" in result.stderr
