"""`qmq queues` and its like: pages put together, and nodes that are missing named."""

import json
from typing import Any

import pytest

from qmq.wire.stomp import Frame
from tests.cli.conftest import Run
from tests.cli.stub import StubNode, polite, verb_answer

QUEUES = [
    {"destination": f"/queue/{name}", "messages": number, "bytes": number * 1024, "in_flight": 1, "consumers": 2}
    for number, name in enumerate(("one", "two", "\x1b[31mthree"))
]


def answers(*pages: dict[str, Any]) -> StubNode:
    """A node that answers the questions one after the other with these pages."""
    left = list(pages)

    def answer(node: StubNode, request: Frame) -> bytes | None:
        if request.head.command != "SEND":
            return polite(node, request)
        return verb_answer(request, left.pop(0))

    return StubNode(answer)


def asked(node: StubNode) -> list[dict[str, str]]:
    return [dict(request.head.headers) for request in node.received if request.head.command == "SEND"]


def test_pages_are_put_together_into_one_table(run: Run) -> None:
    two = {**QUEUES[1], "paused": "delivery"}
    with answers({"destinations": [QUEUES[0], two], "next": "/queue/two"}, {"destinations": QUEUES[2:]}) as node:
        result = run("queues", "t", "--at", node.at)

    assert result.exit_code == 0, result.output
    assert result.output == (
        "QUEUE                 MESSAGES  BYTES    IN FLIGHT  CONSUMERS  PAUSED\n"
        "/queue/one                   0  0 B              1          2  -\n"
        "/queue/two                   1  1.0 KiB          1          2  delivery\n"
        "/queue/\\x1b[31mthree         2  2.0 KiB          1          2  -\n"
    )
    assert [question["after"] for question in asked(node)] == ["", "/queue/two"]
    assert {question["destination"] for question in asked(node)} == {"/control/list/queue/t*"}
    assert all("scope" not in question for question in asked(node))
    assert "\x1b" not in result.output


@pytest.mark.parametrize(("command", "kind"), [("queues", "queue"), ("topics", "topic"), ("fanouts", "fanout")])
@pytest.mark.parametrize("spelling", ["/{}/t", "t"])
def test_a_prefix_may_begin_with_its_kind_as_the_list_shows_it(
    run: Run, command: str, kind: str, spelling: str
) -> None:
    with answers({"destinations": []}) as node:
        run(command, spelling.format(kind), "--at", node.at)

    assert [headers["destination"] for headers in asked(node)] == [f"/control/list/{kind}/t*"]


def test_the_mesh_is_asked_and_missing_nodes_are_named(run: Run) -> None:
    with answers({"destinations": [], "nodes_asked": 3, "nodes_answered": 2, "nodes_missing": ["c"]}) as node:
        result = run("topics", "--mesh", "--at", node.at)

    assert asked(node)[0]["scope"] == "mesh"
    assert "not counted, because they did not answer: c" in result.output


def test_json_holds_the_rows_as_the_node_gave_them(run: Run) -> None:
    with answers({"destinations": QUEUES}) as node:
        result = run("fanouts", "--json", "--at", node.at)

    assert json.loads(result.output) == {"rows": QUEUES, "nodes_missing": [], "cut": False}


@pytest.mark.parametrize("pages", [[{"destinations": QUEUES}], [{"destinations": QUEUES[:2], "next": "/queue/two"}]])
def test_beyond_the_limit_it_says_that_there_are_more(run: Run, pages: list[dict[str, Any]]) -> None:
    with answers(*pages) as node:
        result = run("queues", "--limit", "2", "--json", "--at", node.at)

    assert json.loads(result.output) == {"rows": QUEUES[:2], "nodes_missing": [], "cut": True}


def test_subscribers_are_shown_with_their_place(run: Run) -> None:
    row = {"node": "a", "session": 7, "id": "0", "user": "ann", "address": "10.0.0.1", "credit": 100, "in_flight": 3}
    row |= {"delivered": 44, "delivered_per_second": 1.5, "acknowledged": 41}
    with answers({"subscribers": [row]}) as node:
        result = run("subscribers", "/queue/q", "--rates", "2", "--at", node.at)

    assert result.output == (
        "NODE  SESSION  ID  USER  ADDRESS   CREDIT  IN FLIGHT  DELIVERED  ACKNOWLEDGED  DELIVERED/S  ACKNOWLEDGED/S\n"
        "a           7  0   ann   10.0.0.1     100          3         44            41          1.5\n"
    )
    assert asked(node)[0]["destination"] == "/control/list-subscribers/queue/q"
    assert asked(node)[0]["rate-seconds"] == "2"


def test_subscribers_of_a_fanout_are_shown_with_how_far_they_are_behind(run: Run) -> None:
    row = {"node": "a", "session": 7, "id": "0", "user": "ann", "address": "10.0.0.1", "behind": 12}
    with answers({"subscribers": [row], "durables": []}) as node:
        result = run("subscribers", "/fanout/f", "--mesh", "--at", node.at)

    head = ["NODE", "SESSION", "ID", "USER", "ADDRESS", "DELIVERED", "ACKNOWLEDGED", "DELIVERED/S", "ACKNOWLEDGED/S"]
    assert [line.split() for line in result.output.splitlines()] == [
        [*head, "BEHIND"],
        ["a", "7", "0", "ann", "10.0.0.1", "12"],
    ]


@pytest.mark.parametrize(
    "page", [{}, [], 3, {"destinations": 3}, {"destinations": [1]}, {"destinations": [], "next": 1}]
)
def test_an_answer_that_is_no_list_is_a_failure_in_words(run: Run, page: Any) -> None:
    with answers(page) as node:
        result = run("queues", "--at", node.at)

    assert result.exit_code == 1
    assert f"sends no {'list' if isinstance(page, dict) else 'facts'}; is it a QMQ node?" in result.output


@pytest.mark.parametrize(("command", "head"), [("queues", "QUEUE"), ("topics", "TOPIC"), ("fanouts", "FANOUT")])
def test_totals_have_columns_of_their_own(run: Run, command: str, head: str) -> None:
    rows = [{"destination": "/x", "accepted": 7, "dead_lettered": 1, "counted_since_us": 5}]
    with answers({"destinations": rows}) as node:
        result = run(command, "--totals", "--at", node.at)

    heads, cells = result.output.splitlines()
    assert heads.split() == [
        head,
        *("ACCEPTED", "DELIVERED", "ACKNOWLEDGED", "REDELIVERED", "EXPIRED", "DEAD", "LETTERED", "REMOVED", "REFUSED"),
    ]
    assert cells.split() == ["/x", "7", "0", "0", "0", "0", "1", "0", "0"]
    assert "rate-seconds" not in asked(node)[0]


def test_rates_are_asked_for_and_shown_per_second(run: Run) -> None:
    with answers({"destinations": [{"destination": "/queue/q", "accepted": 70, "accepted_per_second": 3.5}]}) as node:
        result = run("queues", "--rates", "2", "--at", node.at)

    assert asked(node)[0]["rate-seconds"] == "2"
    assert result.output.splitlines()[0].split()[:2] == ["QUEUE", "ACCEPTED/S"]
    assert result.output.splitlines()[1].split()[:3] == ["/queue/q", "3.5", "0"]


def test_a_time_of_rates_out_of_range_is_refused(run: Run) -> None:
    result = run("queues", "--rates", "6", "--at", "127.0.0.1:1")

    assert result.exit_code == 2
    assert "1<=x<=5" in result.output


def test_subscribers_of_a_name_without_kind_are_an_error_of_the_command_line(run: Run) -> None:
    result = run("subscribers", "jobs")

    assert result.exit_code == 2
    assert "'jobs' must be /queue/NAME or /topic/NAME or /fanout/NAME; try /queue/jobs" in result.output


def test_the_age_of_the_oldest_message_is_a_column(run: Run) -> None:
    rows = [{**QUEUES[0], "oldest_age_us": 3_723_000_000}, QUEUES[1]]
    with answers({"destinations": rows}) as node:
        result = run("queues", "--oldest", "--at", node.at)

    assert asked(node)[0]["oldest"] == "true"
    assert [line.split()[-1] for line in result.output.splitlines()] == ["OLDEST", "01:02:03", "-"]
