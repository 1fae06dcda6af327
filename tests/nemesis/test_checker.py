"""The checker of a run under fire, on histories made by hand: each verdict can be reached; and the page of a run."""

from math import inf
from xml.etree import ElementTree

import pytest

from tests.nemesis.checker import Row, judge, missing, wrongs
from tests.nemesis.history import Harm, History
from tests.nemesis.page import page
from tests.nemesis.picture import draw

FANOUT, QUEUE = "/fanout/f", "/queue/q"


def message_id(node: str, number: int = 1, life: int = 1) -> str:
    return f"{node}-{life:016x}-{number}"


def history_of(destination: str, *bodies: bytes, reader: str = "r", is_named: bool = False, copies: int = 2) -> History:
    """All bodies sent, receipted by a and told once by b."""
    history = History()
    for number, body in enumerate(bodies):
        history.send(destination, body, is_named=is_named)
        history.receipt(destination, body, "a", copies)
        history.receive(destination, reader, body, "b", message_id("a", number))
    return history


def row_of(history: History) -> Row:
    (row,) = judge(history)
    return row


def sentences(history: History) -> list[str]:
    return wrongs(history, judge(history))


def test_a_history_without_faults_is_good() -> None:
    history = history_of(FANOUT, b"p 1", b"p 2")

    row = row_of(history)

    assert (row.sent, row.receipted, row.received) == (2, 2, 2)
    assert row.is_good
    assert sentences(history) == []
    assert missing(history, FANOUT, ["r"]) == 0


def test_a_receipted_message_that_a_reader_did_not_get_is_lost_by_the_node_that_receipted_it() -> None:
    history = history_of(FANOUT, b"p 1")
    history.send(FANOUT, b"p 2")
    assert row_of(history).is_good, "without a receipt it may be missing"

    history.receipt(FANOUT, b"p 2", "c")

    assert row_of(history).lost == (b"p 2",)
    assert row_of(history).blamed == {"c": {"lost": 1}}
    assert sentences(history) == ["r of /fanout/f: 1 lost: p 2"]
    assert missing(history, FANOUT, ["r"]) == 1
    assert missing(history, FANOUT, ["r", "nobody"]) == 2


@pytest.mark.parametrize(
    ("copies", "node", "alone_since", "is_allowed"),
    [
        (1, "c", 0.0, True),
        (2, "c", 0.0, False),
        (1, "a", 0.0, False),
        (1, "c", inf, False),
        (1, "c", 1000.0, False),
    ],
)
def test_only_what_was_receipted_for_one_disk_may_be_lost_with_that_disk(
    copies: int, node: str, alone_since: float, is_allowed: bool
) -> None:
    """Not with another one, nor with a node that kept its disk, nor when others had it before."""
    history = history_of(FANOUT, b"p 1")
    history.send(FANOUT, b"p 2")
    history.receipt(FANOUT, b"p 2", "c", copies)

    history.harms.append(Harm("disk lost", (node,), 0.0, 2000.0, alone_since))

    assert row_of(history).is_good == is_allowed
    assert row_of(history).lost_with_disk == int(is_allowed)
    assert missing(history, FANOUT, ["r"]) == int(not is_allowed)


def test_whose_disk_has_an_earlier_attempt_is_not_known() -> None:
    history = history_of(FANOUT, b"p 1")
    history.send(FANOUT, b"p 2", is_named=True)
    history.receipt(FANOUT, b"p 2", "c", 1, is_duplicate=True)

    history.harms.append(Harm("disk lost", ("a",), 0.0, 2000.0, 0.0))

    assert row_of(history).is_good


def test_a_message_that_a_subscriber_got_twice_is_doubled_by_the_node_that_sent_it_again() -> None:
    history = history_of(FANOUT, b"p 1")

    history.receive(FANOUT, "r", b"p 1", "c", message_id("c"))

    assert row_of(history).doubled == (b"p 1",)
    assert row_of(history).blamed == {"c": {"doubled": 1}}


def test_what_was_sent_twice_without_a_name_may_be_delivered_twice_and_not_three_times() -> None:
    history = history_of(FANOUT, b"p 1")

    history.send(FANOUT, b"p 1")
    history.receive(FANOUT, "r", b"p 1", "c", message_id("c"))
    assert row_of(history).is_good
    assert row_of(history).sent_again == 1
    history.receive(FANOUT, "r", b"p 1", "c", message_id("c", 2))

    assert row_of(history).doubled == (b"p 1",)


@pytest.mark.parametrize(
    ("other", "harmed", "begin", "alone_since", "is_allowed"),
    [
        ("b", "a", 0.0, inf, True),
        ("b", "b", 0.0, inf, True),
        ("b", "c", 0.0, inf, False),
        ("b", "a", 1000.0, inf, False),
        ("a", "a", 0.0, inf, False),
        ("a", "a", 0.0, 0.0, True),
    ],
)
def test_a_named_message_may_lie_twice_only_where_something_was_done_to_a_node_that_accepted_it(
    other: str, harmed: str, begin: float, alone_since: float, is_allowed: bool
) -> None:
    """Not for what was done to a third node, nor after the receipt, nor twice at one node that kept its disk."""
    history = history_of(FANOUT, b"p 1", is_named=True)
    history.receive(FANOUT, "r", b"p 1", "c", message_id(other, 7))

    history.harms.append(Harm("kill -9", (harmed,), begin, begin + 1, alone_since))

    assert row_of(history).is_good == is_allowed
    assert row_of(history).around_faults == int(is_allowed)


def test_one_message_id_delivered_twice_is_never_good() -> None:
    history = history_of(FANOUT, b"p 1")

    history.send(FANOUT, b"p 1")
    history.receive(FANOUT, "r", b"p 1", "c", message_id("a", 0), is_repeat=True)

    assert sentences(history) == ["r of /fanout/f: 1 message-ids came twice"]
    assert row_of(history).blamed == {"c": {"doubled": 1}}


def test_what_no_client_sent_is_unexpected() -> None:
    history = history_of(FANOUT, b"p 1")

    history.receive(FANOUT, "r", b"x 7", "c", message_id("a", 9))

    assert row_of(history).unexpected == (b"x 7",)
    assert row_of(history).blamed == {"c": {"unexpected": 1}}


def test_a_queue_may_give_a_message_again_that_has_no_receipted_ack() -> None:
    history = history_of(QUEUE, b"p 1")

    history.receive(QUEUE, "r", b"p 1", "c", message_id("a", 0))

    assert row_of(history).is_good
    assert row_of(history).given_again == 1


def acked(*, for_good: bool) -> History:
    """A message whose ACK b has receipted."""
    history = history_of(QUEUE, b"p 1")
    history.receipt_of_ack("r", b"p 1", "b", message_id("a", 0), for_good=for_good)
    return history


def test_what_was_handed_out_after_its_ack_at_quorum_is_never_good() -> None:
    history = acked(for_good=True)

    history.receive(QUEUE, "r", b"p 1", "c", message_id("a", 0), since=history.now)

    (sentence,) = sentences(history)
    assert sentence.startswith("r of /queue/q: 1 given after their ACK: p 1 (a-0000000000000001-0) came from c")
    assert row_of(history).blamed == {"c": {"given after their ACK": 1}}
    assert row_of(history).acked_for_good == 1


def test_what_was_handed_out_before_its_ack_may_come_after_it() -> None:
    history = acked(for_good=True)

    history.receive(QUEUE, "r", b"p 1", "c", message_id("a", 0), since=0.0)

    assert row_of(history).is_good
    assert row_of(history).on_the_way == 1


def test_after_an_ack_at_edge_another_node_may_deliver_it_again_and_the_share_is_reported() -> None:
    history = acked(for_good=False)
    for number in range(1, 4):
        body = b"p %d" % (number + 1)
        history.send(QUEUE, body)
        history.receive(QUEUE, "r", body, "b", message_id("a", number))
        history.receipt_of_ack("r", body, "b", message_id("a", number), for_good=False)

    history.receive(QUEUE, "r", b"p 1", "c", message_id("a", 0), since=history.now)

    row = row_of(history)
    assert row.is_good
    assert (row.acked_edge, row.after_edge, row.after_edge_percent) == (4, 1, 25.0)


def test_the_node_that_has_receipted_an_ack_never_delivers_the_message_again_as_long_as_it_runs() -> None:
    history = acked(for_good=False)
    history.begin_life("b")
    history.receive(QUEUE, "r", b"p 1", "b", message_id("a", 0), since=history.now)
    assert row_of(history).is_good, "another life"

    history = acked(for_good=False)
    history.receive(QUEUE, "r", b"p 1", "b", message_id("a", 0), since=history.now)

    assert len(row_of(history).again) == 1


def test_an_ack_at_edge_that_is_repeated_at_quorum_is_one_for_good_from_then_on() -> None:
    history = acked(for_good=False)
    history.receipt_of_ack("r", b"p 1", "c", message_id("a", 0), for_good=True)

    history.receive(QUEUE, "r", b"p 1", "c", message_id("a", 0), since=history.now)

    assert not row_of(history).is_good


def test_another_copy_of_what_was_acknowledged_may_come_and_under_a_new_id_nothing_that_was_sent_once() -> None:
    history = acked(for_good=True)
    history.receive(QUEUE, "r", b"p 1", "c", message_id("c", 5), since=history.now)
    assert len(row_of(history).again) == 1, "as when a retired node's message is adopted after all"

    history.send(QUEUE, b"p 1")

    assert row_of(history).is_good


def test_a_node_that_ends_by_itself_breaks_a_promise_and_so_does_what_the_run_found() -> None:
    history = history_of(FANOUT, b"p 1")

    history.death("b", "exit code 1")

    (death, other) = wrongs(history, judge(history), ["nodes do not hold the same"])
    assert "node b ended by itself at" in death
    assert other == "nodes do not hold the same"


def test_the_picture_has_a_line_for_each_rate_and_a_bar_for_each_node_that_was_harmed() -> None:
    history = history_of(FANOUT, b"p 1")
    harms = [Harm("kill -9", ("a",), 1.0, 2.0), Harm("cut", ("a", "c"), 3.0, 4.5)]

    drawn = ElementTree.fromstring(draw(history.rates, harms, ["a", "b", "c"], 5.0))

    name = "{http://www.w3.org/2000/svg}"
    assert len(drawn.findall(f"{name}polyline")) == 3
    titles = [bar.find(f"{name}title") for bar in drawn.findall(f"{name}rect")]
    assert [title.text for title in titles if title is not None] == [
        "kill -9 of a, 1.0–2.0 s",
        "cut of a, c, 3.0–4.5 s",
        "cut of a, c, 3.0–4.5 s",
    ]


def test_the_picture_of_an_empty_run_can_be_drawn() -> None:
    ElementTree.fromstring(draw({"sent": History().rates["sent"]}, [], ["a"], 0.0))


def test_the_page_shows_verdict_blamed_nodes_and_what_could_not_be_tried_and_escapes_all() -> None:
    history = history_of(FANOUT, b"<p> 1")
    history.send(FANOUT, b"<p> 2")
    history.receipt(FANOUT, b"<p> 2", "a")
    history.takeovers["a"] = 3
    rows = judge(history)

    text = page(history, rows, wrongs(history, rows), ["a"], 1.0, "again", "no disk can be mounted")

    assert "1 promises broken" in text
    assert "3 takeovers" in text
    assert "1 lost" in text
    assert "no disk can be mounted" in text
    assert "&lt;p&gt; 2" in text
    assert "<p> 2" not in text


def test_unmarked_message_that_comes_first_behind_a_later_one_of_its_node_and_group_is_overtaken() -> None:
    history = History()
    told = [("a", 1, "g"), ("a", 3, "g"), ("a", 2, "h"), ("b", 2, "g"), ("a", 3, "g"), ("a", 2, "g")]
    for node, number, group in told:
        body = f"p {node}{number}{group}".encode()
        history.send(QUEUE, body)
        history.receipt(QUEUE, body, node)
        history.receive(QUEUE, "r", body, "b", message_id(node, number), group=group)
    history.send(QUEUE, b"p 4")
    history.receipt(QUEUE, b"p 4", "a")
    history.receive(QUEUE, "r", b"p 4", "b", message_id("a", 1), group="g", is_marked=True)

    row = row_of(history)

    assert row.overtaken == (b"p a2g",)
    assert row.blamed == {"b": {"overtaken": 1}}
    assert sentences(history) == ["r of /queue/q: 1 overtaken in their groups: p a2g"]
