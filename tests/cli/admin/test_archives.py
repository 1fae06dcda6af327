"""`qmq archives`: what it asks of the node, and what it prints."""

import json

from tests.cli.admin.test_users import answers, sent
from tests.cli.conftest import Run


def test_an_archive_is_set_and_deleted(run: Run) -> None:
    with answers(kind="archive", name="all", changed=1, dry_run=False) as node:
        done = run("archives", "set", "all", "table=/data/archive", "behind_seconds_max=60", "--at", node.at)
        deleted = run("archives", "delete", "all", "--at", node.at)

    assert (done.exit_code, done.output) == (0, "archive all is set\n")
    assert (deleted.exit_code, deleted.output) == (0, "archive all is deleted\n")
    (put, body), (delete, _) = sent(node)
    assert put == {"destination": "/control/definitions/put/archive/all"}
    assert json.loads(body) == {"table": "/data/archive", "behind_seconds_max": 60}
    assert delete == {"destination": "/control/definitions/delete/archive/all"}


def test_archives_are_listed_with_their_tables(run: Run) -> None:
    found = [
        {"kind": "archive", "name": "all", "value": {"table": "/data/archive"}},
        {"kind": "archive", "name": "eu", "value": {"table": "/data/eu", "destinations": ["/queue/a", "/queue/b"]}},
    ]
    with answers(definitions=found) as node:
        result = run("archives", "list", "--at", node.at)

    assert [line.split() for line in result.output.splitlines()] == [
        ["NAME", "TABLE", "DESTINATIONS"],
        ["all", "/data/archive", "all"],
        ["eu", "/data/eu", "/queue/a", "/queue/b"],
    ]
