"""`qmq doctor` asks one node about the mesh, over verbs that exist, and says which of them its user may not use."""

import json

from tests.cli.conftest import Run
from tests.cli.doctor.test_live import node as facts_of
from tests.cli.stub import of_verbs

QUEUE = {"destination": "/queue/jobs", "messages": 3, "consumers": 0, "oldest_age_us": 3_600_000_000}
DEAD = {"destination": "/queue/failed", "messages": 2, "accepted_per_second": 0.5}
POLICIES = [
    {"name": "/queue/jobs.*", "value": {"dead_letter": "/queue/failed"}},
    {"name": "/queue/old.*", "value": {}},
    {"name": "/exchange/orders", "value": {"alternate": "/exchange/rest"}},
]
NODES = {"a": facts_of("a", waiting=3, in_flight=1), "b": facts_of("b", waiting=4)}
ANSWERS = {
    "overview": {"node": "a", "nodes": NODES, "nodes_missing": ["c"]},
    "conditions": {"conditions": []},
    "list/queue/": {"destinations": [QUEUE]},
    "definitions/list/policy": {"definitions": POLICIES},
    "definitions/list/archive": {"definitions": [{"name": "all", "value": {"table": "/data/archive"}}]},
    "list/queue/failed": {"destinations": [DEAD]},
    "list/queue/dead-letters": {"destinations": []},
    "list/queue/jobs.": {"destinations": [{"destination": "/queue/jobs.a"}]},
    "list/queue/old.": {"destinations": []},
}


def test_the_whole_mesh_is_asked_over_one_node(run: Run) -> None:
    with of_verbs(ANSWERS) as node:
        result = run("doctor", "--at", node.at)

    assert result.exit_code == 1
    assert [line for line in result.output.splitlines() if not line.startswith(" ")] == [
        "error  c  does not answer",
        "error  /queue/failed  2 dead letters, 0.5 more each second",
        "warning  /queue/jobs  3 messages and no consumer, the oldest for 01:00:00",
        "warning  archive all  no archiver has reported to a node that answers, since it was started",
        "info  /queue/old.*  this policy matches no destination now",
        "2 nodes, 7 messages waiting, 1 in flight",
        "2 errors, 2 warnings",
    ]
    asked = [request.head.headers for request in node.received if request.head.command == "SEND"]
    assert all(one["scope"] == "mesh" for one in asked if "definitions" not in one["destination"])


def test_what_the_user_may_not_ask_is_left_out_and_said(run: Run) -> None:
    with of_verbs(ANSWERS, "definitions/list/policy") as node:
        result = run("doctor", "--at", node.at, "--json")

    found = json.loads(result.stdout)
    assert (found["checked"], found["nodes"], found["waiting"], found["in_flight"]) == ("mesh", 2, 7, 1)
    assert [one["where"] for one in found["findings"]] == ["c", "/queue/jobs", "archive all", "rights"]


def test_a_user_without_a_right_to_observe_gets_the_refusal(run: Run) -> None:
    with of_verbs(ANSWERS, "overview") as node:
        result = run("doctor", "--at", node.at)

    assert result.exit_code == 1
    assert result.stderr == f"qmq: {node.at}: may not (not-allowed)\n"


def test_of_many_policies_the_first_hundred_are_looked_at_and_the_number_is_said(run: Run) -> None:
    policies = [{"name": f"/queue/old{number}.*", "value": {}} for number in range(101)]
    lists = {f"list{policy['name'].removesuffix('*')}": {"destinations": []} for policy in policies}
    with of_verbs(ANSWERS | lists | {"definitions/list/policy": {"definitions": policies}}) as node:
        result = run("doctor", "--at", node.at)

    assert result.output.count("this policy matches no destination now") == 100
    assert "info  policies  only the first 100 of 101 were compared with the destinations" in result.output
