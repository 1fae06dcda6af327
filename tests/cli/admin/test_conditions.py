"""`qmq conditions`: what nodes report, and an exit code for scripts."""

import json

import pytest

from tests.cli.admin.test_listing import answers, asked
from tests.cli.conftest import Run

DISK = {
    "node": "n2",
    "code": "disk-full",
    "severity": "error",
    "message": "the disk is nearly full",
    "advice": "Free disk space.",
    "since_us": 1_700_000_000_000_000,
    "last_us": 1_700_000_001_000_000,
    "count": 3,
}
RELOAD = {**DISK, "code": "reload", "severity": "warning", "count": 1, "advice": "", "until_us": 1_700_000_060_000_000}


def test_each_condition_is_shown_with_its_node_its_beginning_and_an_advice(run: Run) -> None:
    with answers({"conditions": [DISK], "next": "k"}, {"conditions": [RELOAD]}) as node:
        result = run("conditions", "--at", node.at)

    assert result.output.splitlines() == [
        "error  n2  disk-full  2023-11-14T22:13:20Z  3 times",
        "    the disk is nearly full",
        "    Free disk space.",
        "warning  n2  reload  2023-11-14T22:13:20Z to 2023-11-14T22:14:20Z",
        "    the disk is nearly full",
    ]
    assert result.exit_code == 1
    assert {question["scope"] for question in asked(node)} == {"mesh"}


@pytest.mark.parametrize(
    ("rows", "missing", "code"), [([], [], 0), ([RELOAD], [], 0), ([DISK], [], 1), ([], ["n3"], 1)]
)
def test_the_exit_code_says_whether_something_is_wrong(
    run: Run, rows: list[dict[str, object]], missing: list[str], code: int
) -> None:
    with answers({"conditions": rows, "nodes_missing": missing}) as node:
        result = run("conditions", "--at", node.at, "--json")

    assert result.exit_code == code
    assert json.loads(result.stdout) == {"rows": rows, "nodes_missing": missing}


def test_history_is_asked_for_by_name_and_is_no_error(run: Run) -> None:
    with answers({"conditions": [DISK]}) as node:
        result = run("conditions", "--past", "--one-node", "--at", node.at)

    assert result.exit_code == 0
    assert [(one["destination"], "scope" in one) for one in asked(node)] == [("/control/conditions/past", False)]


def test_history_begins_with_the_latest(run: Run) -> None:
    """Pages of several nodes come in the order of severity."""
    earlier = {**DISK, "code": "gap", "severity": "critical", "last_us": DISK["last_us"] - 1}
    with answers({"conditions": [earlier], "next": "k"}, {"conditions": [DISK]}) as node:
        result = run("conditions", "--past", "--at", node.at, "--json")

    assert [row["code"] for row in json.loads(result.stdout)["rows"]] == ["disk-full", "gap"]


@pytest.mark.parametrize("option", [(), ("--past",)])
def test_without_the_answer_of_a_node_there_is_no_all_clear(run: Run, option: tuple[str, ...]) -> None:
    with answers({"conditions": [], "nodes_missing": ["n3"]}) as node:
        result = run("conditions", *option, "--at", node.at)

    assert (result.exit_code, result.stdout) == (1, "")
    assert "n3" in result.stderr


def test_without_conditions_it_says_so(run: Run) -> None:
    with answers({"conditions": []}) as node:
        assert run("conditions", "--at", node.at).stdout == "no conditions\n"
