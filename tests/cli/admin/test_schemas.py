"""`qmq schemas`: what it asks of the node, and what it prints."""

import json
from pathlib import Path

import pytest

from tests.cli.admin.test_users import answers, sent
from tests.cli.conftest import Run

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long", "doc": "Grüße"}]}
FINGERPRINT = "9ceeff271bb9576b"


def test_a_schema_is_set_from_a_file_and_deleted(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(SCHEMA))
    with answers(kind="schema", name="orders", changed=1, dry_run=False) as node:
        done = run("schemas", "set", "orders", str(file), "--quorum", "--at", node.at)
        deleted = run("schemas", "delete", "orders", "--at", node.at)

    assert (done.exit_code, done.output) == (0, "schema orders is set\n")
    assert (deleted.exit_code, deleted.output) == (0, "schema orders is deleted\n")
    (put, body), (delete, _) = sent(node)
    assert put == {"destination": "/control/definitions/put/schema/orders", "quorum": "true"}
    assert json.loads(body) == SCHEMA
    assert delete == {"destination": "/control/definitions/delete/schema/orders"}


@pytest.mark.parametrize("as_json", [False, True])
def test_schemas_are_listed_with_fingerprints(run: Run, as_json: bool) -> None:
    rows = [
        {"kind": "schema", "name": "later", "value": {"type": "later"}},
        {"kind": "schema", "name": "orders", "value": SCHEMA},
    ]
    with answers(definitions=rows) as node:
        result = run("schemas", "list", "--at", node.at, *(["--json"] if as_json else []))

    assert result.exit_code == 0
    if as_json:
        found = json.loads(result.output)["definitions"]
        assert [row["fingerprint"] for row in found] == ["-", FINGERPRINT]
        assert found[1]["value"] == SCHEMA
    else:
        assert [line.split() for line in result.output.splitlines()] == [
            ["NAME", "FINGERPRINT", "TYPE"],
            ["later", "-", "later"],
            ["orders", FINGERPRINT, "record", "Order"],
        ]


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_schema_is_shown_as_it_was_set(run: Run, option: tuple[str, ...]) -> None:
    with answers(kind="schema", name="orders", value=SCHEMA) as node:
        result = run("schemas", "show", "orders", "--at", node.at, *option)

    assert result.exit_code == 0
    assert json.loads(result.output) == SCHEMA
