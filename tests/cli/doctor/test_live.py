"""What the facts of a running mesh mean: a finding for each thing that an operator should change, and no others."""

from collections.abc import Mapping
from typing import Any

import pytest

from qmq.cli.doctor.facts import MeshFacts
from qmq.cli.doctor.findings import DoctorFinding, in_order, shown, summary
from qmq.cli.doctor.live import QUEUES_NAMED, findings_of_mesh, totals_of

GIB = 1 << 30
NOW_US = 1_700_000_000_000_000


def node(name: str, **changes: Any) -> dict[str, Any]:
    links = [{"peer": peer, "out": "caught-up", "in": "up", "last_error": ""} for peer in "abc" if peer != name]
    return {
        "node": name,
        "version": "1.0.0",
        "build": "compiled",
        "at_us": NOW_US,
        "members": ["a", "b", "c"],
        "disk_free_bytes": 100 * GIB,
        "fsync": {"mean_us": 800},
        "memory_bytes": 10,
        "memory_max_bytes": GIB,
        "links": links,
        **changes,
    }


def mesh(nodes: Mapping[str, dict[str, Any]] = {}, /, **changes: Any) -> MeshFacts:
    """A mesh without faults, but for what is given."""
    healthy = MeshFacts(
        nodes={name: node(name) for name in "abc"} | dict(nodes),
        missing=[],
        conditions=[],
        queues=[],
        dead_letters=[],
        unmatched=[],
        policies=0,
        archives=[],
    )
    return healthy._replace(**changes)


def found(facts: MeshFacts) -> list[tuple[str, str, str]]:
    return [(one.severity, one.where, one.message) for one in findings_of_mesh(facts)]


def queue(messages: int, **more: Any) -> dict[str, Any]:
    return {"destination": "/queue/jobs", "messages": messages, "oldest_age_us": 3_600_000_000, **more}


def test_a_healthy_mesh_has_no_finding() -> None:
    assert found(mesh()) == []
    assert summary([]) == "nothing wrong"


def test_totals_are_those_of_the_nodes_that_answer() -> None:
    nodes = {"a": node("a", waiting=1200, in_flight=3), "b": node("b", waiting=34, in_flight=0)}

    assert totals_of(mesh(nodes=nodes)) == {"nodes": 2, "waiting": 1234, "in_flight": 3}
    assert totals_of(mesh({"a": node("a", waiting=5)}))["waiting"] == 5


@pytest.mark.parametrize(
    ("changed", "severity", "message"),
    [
        ({"at_us": NOW_US + 1_500_000}, "warning", "its clock is 1.5 s ahead"),
        ({"at_us": NOW_US - 90_000_000}, "warning", "its clock is 90.0 s behind"),
        ({"disk_free_bytes": GIB // 2}, "warning", "its disk has 512.0 MiB free"),
        ({"fsync": {"mean_us": 45_000}}, "warning", "an fsync takes 45 ms on average"),
        ({"memory_bytes": GIB * 9 // 10}, "warning", "its clients hold 921.6 MiB of 1.0 GiB"),
        (
            {"links": [{"peer": "c", "out": "down", "in": "up", "last_error": "Connection refused"}]},
            "error",
            "no link to c: Connection refused",
        ),
        (
            {"links": [{"peer": "c", "out": "connecting", "in": "down", "last_error": ""}]},
            "error",
            "no link to and from c",
        ),
    ],
)
def test_what_is_wrong_with_one_node_names_it(changed: dict[str, Any], severity: str, message: str) -> None:
    assert found(mesh({"b": node("b", **changed)})) == [(severity, "b", message)]


@pytest.mark.parametrize(
    "changed",
    [
        {"at_us": NOW_US + 900_000},
        {"disk_free_bytes": GIB},
        {"fsync": {"mean_us": 20_000}},
        {"memory_bytes": GIB * 8 // 10 - 1},
        {"links": [{"peer": "c", "out": "up", "in": "up"}]},
    ],
)
def test_what_is_still_well_is_no_finding(changed: dict[str, Any]) -> None:
    assert found(mesh({"b": node("b", **changed)})) == []


def test_a_node_that_does_not_answer_is_one_finding_without_its_links() -> None:
    down = [{"peer": "c", "out": "down", "in": "down", "last_error": "refused"}]
    nodes = {name: node(name, links=down) for name in "ab"}

    assert found(mesh()._replace(nodes=nodes, missing=["c"])) == [("error", "c", "does not answer")]


def test_nodes_that_differ_are_named_with_what_each_has() -> None:
    facts = mesh({"b": node("b", members=["a", "b"], version="1.1.0", build="pure")})

    assert found(facts) == [
        ("warning", "peers files", "differ: a has a, b, c; b has a, b; c has a, b, c"),
        ("warning", "versions", "differ: a 1.0.0, b 1.1.0, c 1.0.0"),
        ("info", "builds", "some nodes run compiled, some pure Python"),
    ]


def test_conditions_keep_their_severity_and_their_advice() -> None:
    row = {"code": "gap", "severity": "critical", "node": "b", "message": "3 records", "advice": "Compare."}

    assert findings_of_mesh(mesh(conditions=[row])) == [DoctorFinding("critical", "b", "gap: 3 records", "Compare.")]


@pytest.mark.parametrize("row", [queue(0), queue(5, consumers=1), queue(5, oldest_age_us=59_000_000)])
def test_a_queue_that_is_empty_served_or_young_is_no_finding(row: dict[str, Any]) -> None:
    assert found(mesh(queues=[row])) == []


def test_a_queue_without_consumers_is_a_warning() -> None:
    expected = "5 messages and no consumer, the oldest for 01:00:00"

    assert found(mesh(queues=[queue(5)])) == [("warning", "/queue/jobs", expected)]


def test_of_many_queues_without_consumers_some_are_named() -> None:
    rows = [queue(1, destination=f"/queue/{number}") for number in range(QUEUES_NAMED + 3)]

    assert len(found(mesh(queues=rows))) == QUEUES_NAMED + 1
    assert found(mesh(queues=rows))[-1] == ("warning", "/queue/*", "3 more queues with messages and no consumer")


@pytest.mark.parametrize(
    ("rate", "severity", "message"),
    [(0, "warning", "7 dead letters"), (1.5, "error", "7 dead letters, 1.5 more each second")],
)
def test_dead_letters_are_an_error_when_they_grow(rate: float, severity: str, message: str) -> None:
    row = queue(7, destination="/queue/dead", accepted_per_second=rate)

    assert found(mesh(dead_letters=[row], queues=[row])) == [(severity, "/queue/dead", message)]


def test_policies_that_were_not_looked_at_are_said() -> None:
    assert found(mesh(policies=100)) == []
    message = "only the first 100 of 101 were compared with the destinations"
    assert found(mesh(policies=101)) == [("info", "policies", message)]


def test_what_the_user_may_not_see_is_said() -> None:
    assert [where for _, where, _ in found(mesh(queues=None))] == ["rights"]
    assert [where for _, where, _ in found(mesh(unmatched=None))] == ["rights"]


def test_the_most_urgent_comes_first_and_a_severity_of_a_later_version_counts_as_an_error() -> None:
    given = [DoctorFinding(one, "x", "m", "do") for one in ("info", "warning", "disaster", "critical")]

    assert [one.severity for one in in_order(given)] == ["critical", "disaster", "warning", "info"]
    assert shown(given[:1]) == ["info  x  m", "    do"]
    assert summary(given) == "2 errors, 1 warning"


def test_an_archive_that_nothing_has_filled_is_a_warning() -> None:
    filled = node("b", readers=[{"name": "all", "behind": 3, "seconds": None, "connected": False}])

    assert found(mesh({"b": filled}, archives=["all"])) == []
    assert found(mesh({"b": filled}, archives=["all", "eu"])) == [
        ("warning", "archive eu", "no archiver has reported to a node that answers, since it was started")
    ]
