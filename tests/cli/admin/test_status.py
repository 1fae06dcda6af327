"""`qmq status`: a node's own account, for people and for programs."""

import json
from pathlib import Path

import pytest

from qmq.cli.status import describe
from qmq.wire.stomp import Frame
from tests.cli.conftest import Run
from tests.cli.stub import STATUS, StubNode, message, polite, verb_answer


def test_the_status_is_shown_in_a_readable_order(run: Run, node: StubNode) -> None:
    result = run("status", "--at", node.at)

    assert result.exit_code == 0, result.output
    assert result.output == (
        "node a  incarnation 00000000000000aa  up 01:02:05\n"
        "connections 3  subscriptions 2\n"
        "journal at 5096  kept 4.0 KiB  not yet on disk 0 B\n"
        "CONDITION forged-origin: b sent records of nobody (3 times)\n"
        "\n"
        "PEER  OUT   IN  LAG\n"
        "b     up    up    4\n"
        "c     down  up    0\n"
        "\n"
        "QUEUE        MESSAGES\n"
        "/queue/jobs        12\n"
        "\n"
        "FANOUT       MESSAGES  BYTES\n"
        "/fanout/log      2000  90000\n"
    )


def test_a_status_without_rights_shows_no_zeros() -> None:
    lines = describe({"node": "a", "software": "qmq/0.1.0", "incarnation": "00000000000000aa", "vector": {}})

    assert lines == [
        "node a  incarnation 00000000000000aa",
        "the other parts of the status need the right to observe /control/status",
    ]


def test_a_node_that_delivers_no_queue_messages_says_so() -> None:
    facts = {"node": "a", "incarnation": "00000000000000aa", "uptime_seconds": 1}

    said = "QUEUES HELD: delivers no queue messages until it hears a majority of the nodes and what they settled"
    assert said in describe({**facts, "held": True})
    assert said not in describe({**facts, "held": False})


def test_json_is_the_answer_of_the_node(run: Run, node: StubNode) -> None:
    result = run("status", "--json", "--at", node.at)

    assert json.loads(result.output) == STATUS


def test_a_long_status_arrives(run: Run) -> None:
    facts = {"node": "a", "queues": [{"destination": f"/queue/{n:0200}", "messages": n} for n in range(5000)]}

    def answer(node: StubNode, request: Frame) -> bytes | None:
        if request.head.command == "SEND":
            return verb_answer(request, facts)
        return polite(node, request)

    with StubNode(answer) as node:
        result = run("status", "--at", node.at)

    assert result.output.splitlines()[-1] == "and 4980 more"


@pytest.mark.parametrize(
    "facts", [{}, {"queues": 3, "peers": [1], "fanouts": None, "journal": [], "conditions": ["x", {}]}]
)
def test_a_status_of_another_version_is_shown_as_far_as_it_goes(facts: dict[str, object]) -> None:
    assert describe(facts)[0].startswith("node ?")


@pytest.mark.parametrize(("body", "what"), [(b"", "JSON"), (b"{", "JSON"), (b"[]", "facts")])
def test_an_answer_that_is_no_status_is_reported(run: Run, body: bytes, what: str) -> None:
    def answer(node: StubNode, request: Frame) -> bytes | None:
        return message(1, body) if request.head.command == "SEND" else polite(node, request)

    with StubNode(answer) as node:
        result = run("status", "--at", node.at)

    assert result.exit_code == 1
    assert f"sends no {what}; is it a QMQ node?" in result.stderr


def test_subscriptions_that_do_not_keep_up_are_shown() -> None:
    row = {"session": 7, "destination": "/topic/t", "messages": 5, "bytes": 500, "dropped": 12}

    lines = describe({"slow": [row]})

    assert lines[-2:] == [
        "SLOW SUBSCRIPTION  SESSION  WAITING  DROPPED",
        "/topic/t                 7        5       12",
    ]


def test_durable_subscriptions_are_listed_used_or_not() -> None:
    rows = [
        {"destination": "/fanout/f", "name": "ann/mail", "in_use": False, "in_flight": 0},
        {"destination": "/fanout/f", "name": "bob", "in_use": True, "in_flight": 3},
    ]

    lines = describe({"durables": rows})

    assert [line.split() for line in lines[-2:]] == [["/fanout/f", "ann/mail", "no"], ["/fanout/f", "bob", "yes"]]


def test_the_status_of_a_mesh_is_asked_with_the_login_that_is_given(
    run: Run, node: StubNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = tmp_path / "peers.toml"
    peers.write_text(
        f'mesh = "one"\nversion = 1\n[[nodes]]\nname = "a"\nclient = "{node.at}"\nmesh = "127.0.0.1:1"\n', "utf-8"
    )
    monkeypatch.setenv("QMQ_PASSCODE", "secret")

    result = run("mesh", "status", str(peers), "--data", str(tmp_path), "--login", "ann")

    assert "ready  3/4" in result.output
    connect = node.received[0].head.headers
    assert (connect["login"], connect["passcode"]) == ("ann", "secret")


def test_totals_are_shown_with_their_rates_where_they_were_measured(run: Run) -> None:
    totals = {"accepted": 12, "delivered": 0, "acknowledged": 0, "expired": 3, "dead_lettered": 1, "refused": 0}

    def answer(node: StubNode, request: Frame) -> bytes | None:
        if request.head.headers.get("destination") == "/control/status":
            assert request.head.headers["rate-seconds"] == "2"
            facts = {"node": "a", "totals": totals, "rates": {"accepted_per_second": 2.5}}
            return verb_answer(request, facts)
        return polite(node, request)

    with StubNode(answer) as node:
        result = run("status", "--rates", "2", "--at", node.at)

    line = "accepted 12 (2.5/s)  delivered 0  acknowledged 0  expired 3  dead lettered 1"
    assert line in result.output.splitlines()
