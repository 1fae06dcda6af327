"""The checker of a run under fire, on histories made by hand; and the page that shows them."""

from xml.etree import ElementTree

from tests.nemesis.checker import judge, missing, wrongs
from tests.nemesis.history import Harm, History
from tests.nemesis.page import page
from tests.nemesis.picture import draw

FANOUT, QUEUE = "/fanout/f", "/queue/q"


def history_of(destination: str, *bodies: bytes, reader: str = "r") -> History:
    """All bodies sent, receipted and told once."""
    history = History()
    for body in bodies:
        history.send(destination, body)
        history.receipt(destination, body, "a")
        history.receive(destination, reader, body, "b")
    return history


def test_a_history_without_faults_is_good() -> None:
    history = history_of(FANOUT, b"p 1", b"p 2")

    (row,) = judge(history)

    assert (row.sent, row.receipted, row.received) == (2, 2, 2)
    assert row.is_good
    assert wrongs([row]) == []
    assert missing(history, FANOUT, ["r"]) == 0


def test_a_receipted_message_that_a_reader_was_not_told_is_lost() -> None:
    history = history_of(FANOUT, b"p 1")
    history.send(FANOUT, b"p 2")
    assert judge(history)[0].is_good, "without a receipt it may be missing"

    history.receipt(FANOUT, b"p 2", "a")

    assert judge(history)[0].lost == (b"p 2",)
    assert wrongs(judge(history)) == ["r of /fanout/f: 1 lost: p 2"]
    assert missing(history, FANOUT, ["r"]) == 1
    assert missing(history, FANOUT, ["r", "nobody"]) == 2


def test_a_message_that_a_follower_was_told_twice_is_doubled() -> None:
    history = history_of(FANOUT, b"p 1")

    history.receive(FANOUT, "r", b"p 1", "c")

    assert judge(history)[0].doubled == (b"p 1",)


def test_what_was_sent_twice_without_a_name_may_be_told_twice() -> None:
    history = history_of(FANOUT, b"p 1")

    history.send(FANOUT, b"p 1")
    history.receive(FANOUT, "r", b"p 1", "c")

    assert judge(history)[0].is_good
    assert judge(history)[0].sent_again == 1


def test_what_had_no_answer_while_a_node_was_down_may_be_told_twice_and_is_counted() -> None:
    history = history_of(FANOUT, b"p 1")
    history.receive(FANOUT, "r", b"p 1", "c")

    history.harms.append(Harm("kill -9", ("a",), 0.0, history.now))

    assert judge(history)[0].is_good
    assert judge(history)[0].around_faults == 1


def test_one_message_id_told_twice_is_never_good() -> None:
    history = history_of(FANOUT, b"p 1")

    history.send(FANOUT, b"p 1")
    history.receive(FANOUT, "r", b"p 1", "c", is_repeat=True)

    assert wrongs(judge(history)) == ["r of /fanout/f: 1 message-ids came twice"]


def test_what_nobody_sent_is_unexpected() -> None:
    history = history_of(FANOUT, b"p 1")

    history.receive(FANOUT, "r", b"x 7", "c")

    assert judge(history)[0].unexpected == (b"x 7",)


def test_a_queue_may_give_a_message_again() -> None:
    history = history_of(QUEUE, b"p 1")

    history.receive(QUEUE, "r", b"p 1", "c")

    assert judge(history)[0].is_good
    assert judge(history)[0].given_again == 1


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


def test_the_page_tells_the_verdict_and_escapes_what_it_shows() -> None:
    history = history_of(FANOUT, b"<p> 1")
    history.send(FANOUT, b"<p> 2")
    history.receipt(FANOUT, b"<p> 2", "a")

    text = page(history, judge(history), ["a"], 1.0, "again")

    assert "1 promises broken" in text
    assert "&lt;p&gt; 2" in text
    assert "<p> 2" not in text
