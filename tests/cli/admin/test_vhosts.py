"""`qmq vhosts`: what it asks of the node, and what it prints."""

import json

import pytest

from tests.cli.admin.test_users import answers, sent
from tests.cli.conftest import Run


@pytest.mark.parametrize("name", ["shop", "/shop"])
def test_a_virtual_host_is_declared_and_deleted(run: Run, name: str) -> None:
    with answers(kind="vhost", name="shop", changed=1, dry_run=False) as node:
        declared = run("vhosts", "declare", name, "--quorum", "--at", node.at)
        deleted = run("vhosts", "delete", name, "--at", node.at)

    assert (declared.exit_code, declared.output) == (0, "vhost shop is declared\n")
    assert (deleted.exit_code, deleted.output) == (0, "vhost shop is deleted\n")
    (put, body), (delete, _) = sent(node)
    assert put == {"destination": "/control/definitions/put/vhost/shop", "quorum": "true"}
    assert json.loads(body) == {}
    assert delete == {"destination": "/control/definitions/delete/vhost/shop"}


@pytest.mark.parametrize("as_json", [False, True])
def test_virtual_hosts_are_listed_with_their_prefixes(run: Run, as_json: bool) -> None:
    with answers(definitions=[{"kind": "vhost", "name": "shop", "value": {}}]) as node:
        result = run("vhosts", "list", "--at", node.at, *(["--json"] if as_json else []))

    assert result.exit_code == 0
    if as_json:
        assert [row["name"] for row in json.loads(result.output)["definitions"]] == ["shop"]
    else:
        assert [line.split() for line in result.output.splitlines()] == [
            ["NAME", "PREFIX"],
            ["/", "-"],
            ["shop", "shop~"],
        ]
