"""`qmq peek`, `get` and `trace`: what they ask of the node, and what they print."""

from tests.cli.admin.test_connections import answers, sent
from tests.cli.conftest import Run

ROW = {
    "message_id": "a-00000000000000aa-7",
    "at_us": 1_000_000,
    "state": "waiting",
    "headers": {"colour": "red"},
    "body": "hello\x1b[1m",
}


def test_a_peek_prints_headers_and_bodies(run: Run) -> None:
    with answers(rows=[ROW]) as node:
        result = run("peek", "/queue/q", "--count", "3", "--at", node.at)

    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "a-00000000000000aa-7  1970-01-01T00:00:01.000+00:00  waiting"
    assert lines[1] == "  colour: red"
    assert lines[2].startswith("  hello") and "\x1b" not in lines[2]
    assert sent(node) == {"destination": "/control/peek/queue/q", "count": "3"}


def test_a_message_is_asked_for_by_its_id(run: Run) -> None:
    with answers(rows=[{**ROW, "body_base64": "//4="}]) as node:
        assert run("get", "a-00000000000000aa-7", "--at", node.at).exit_code == 0

    assert sent(node) == {"destination": "/control/get/a-00000000000000aa-7"}


def test_a_trace_prints_events_copies_and_what_is_not_known(run: Run) -> None:
    by = {"connection": "a/2", "user": "ann", "address": "10.0.0.1"}
    facts = {
        "events": [
            {"event": "accepted", "node": "a", "at_us": 0, "destination": "/queue/q"},
            {"event": "failed", "node": "a", "at_us": 0, "deliveries": 1, "by": [by]},
            {"event": "settled", "node": "a", "at_us": 0, "by": [by, {**by, "connection": "a/3", "user": ""}]},
        ],
        "in_flight": [{"connection": "b/1", "user": "ann", "address": "10.0.0.1"}],
        "copies": ["a", "b"],
        "unknown": ["copy and deliveries on c: no answer"],
    }
    with answers(**facts) as node:
        result = run("trace", "a-00000000000000aa-7", "--at", node.at)

    assert (result.exit_code, result.output.splitlines()) == (
        0,
        [
            "1970-01-01T00:00:00.000+00:00  accepted on a  destination=/queue/q",
            "1970-01-01T00:00:00.000+00:00  failed on a  deliveries=1 by=a/2 ann 10.0.0.1",
            "1970-01-01T00:00:00.000+00:00  settled on a  by=a/2 ann 10.0.0.1 or a/3 - 10.0.0.1",
            "now  with b/1 ann 10.0.0.1",
            "now  on the disks of a, b",
            "not known: copy and deliveries on c: no answer",
        ],
    )


def test_a_trace_of_which_nothing_is_known_ends_with_exit_code_1(run: Run) -> None:
    with answers(events=[], messages=0, copies=[], unknown=["everything"]) as node:
        assert run("trace", "x", "--at", node.at).exit_code == 1


def test_a_peek_says_on_stderr_that_there_are_more(run: Run) -> None:
    with answers(rows=[ROW], more=True) as node:
        result = run("peek", "/queue/q", "--count", "1", "--offset", "40", "--at", node.at)

    assert (result.exit_code, result.stderr) == (0, "qmq: /queue/q has more messages; see --offset 41\n")
    assert sent(node) == {"destination": "/control/peek/queue/q", "count": "1", "offset": "40"}


def test_a_trace_of_an_unknown_message_names_no_disks(run: Run) -> None:
    unknown = "everything: no node that answered knows this message-id"
    with answers(events=[], messages=0, copies=[], unknown=[unknown]) as node:
        assert run("trace", "x", "--at", node.at).stdout == f"not known: {unknown}\n"
