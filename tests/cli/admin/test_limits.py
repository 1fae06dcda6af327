"""`qmq limits`: what it asks of the node, and what it prints."""

import json

import pytest

from tests.cli.admin.test_users import answers, sent
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("subject", "name"),
    [("ann", "user:ann"), ("user:ann", "user:ann"), ("group:g", "group:g"), ("*", "user:*"), ("a:b", "user:a:b")],
)
def test_limits_are_set_and_deleted(run: Run, subject: str, name: str) -> None:
    with answers(kind="limit", name=name, changed=1, dry_run=False) as node:
        values = ("messages_per_second_max=5", "bytes_per_second_max=1MiB")
        done = run("limits", "set", subject, *values, "--quorum", "--at", node.at)
        gone = run("limits", "delete", subject, "--at", node.at)

    assert (done.exit_code, done.output) == (0, f"limit {name} is set\n")
    assert (gone.exit_code, gone.output) == (0, f"limit {name} is deleted\n")
    (put, body), (delete, _) = sent(node)
    assert put == {"destination": f"/control/definitions/put/limit/{name}", "quorum": "true"}
    assert json.loads(body) == {"messages_per_second_max": 5, "bytes_per_second_max": "1MiB"}
    assert delete == {"destination": f"/control/definitions/delete/limit/{name}"}


@pytest.mark.parametrize("as_json", [False, True])
def test_limits_are_listed(run: Run, as_json: bool) -> None:
    rows = [{"kind": "limit", "name": "user:*", "value": {"queues_max": 5, "held_bytes_max": 1024}}]
    with answers(definitions=rows) as node:
        result = run("limits", "list", "--at", node.at, *(["--json"] if as_json else []))

    assert result.exit_code == 0
    if as_json:
        assert json.loads(result.output) == {"definitions": rows}
    else:
        assert result.output.splitlines()[:2] == ["SUBJECT  LIMITS", "user:*   queues_max=5 held_bytes_max=1024"]
