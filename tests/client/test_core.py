"""The pure parts of the client by themselves: core, requests, vectors, rotation."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.client.core.address import parse_address
from qmq.client.core.core import Core
from qmq.client.core.encode import vector_of
from qmq.client.core.feed import AckMode, Delivered, Feed, FeedState
from qmq.client.core.requests import Phase, Request
from qmq.client.core.rotation import Rotation
from qmq.client.core.vectors import HEADER_BYTES_MAX, ORIGINS_MAX, Progress, parse_gap, parse_progress
from qmq.errors import NotConnected, Refused, RemoteProtocolError, Stale
from qmq.gateways.headers import parse_vector
from qmq.model.dots import Origin
from qmq.wire.stomp import Connection, Frame, Role, encode_frame


class Peer:
    """A core with the node's side of the connection in the test's hand."""

    def __init__(self, **options: int) -> None:
        self.core = Core(id="c", **options)  # type: ignore[arg-type]
        self.connection = Connection(Role.SERVER)

    def log_in(self, **headers: str) -> list[Frame]:
        """Begin a connection and let the core in; returns what it asks for."""
        self.connection = Connection(Role.SERVER)
        self.core.begin("host")
        (connect,) = self.frames()
        assert connect.head.command == "CONNECT"
        lines = [("version", "1.2"), *((name.replace("_", "-"), value) for name, value in headers.items())]
        self.say("CONNECTED", *lines)
        return self.frames()

    def frames(self) -> list[Frame]:
        frames = self.connection.receive(self.core.take_output())
        assert self.connection.error is None, self.connection.error
        return frames

    def say(self, command: str, *headers: tuple[str, str], body: bytes = b"") -> None:
        self.core.receive(encode_frame(command, headers, body))

    def receipt(self, id: str | None) -> None:
        assert id is not None
        self.say("RECEIPT", ("receipt-id", id))


def queue(
    ack: AckMode = AckMode.CLIENT_INDIVIDUAL, destination: str = "/queue/q", start: str = "first", ack_level: str = ""
) -> Feed:
    return Feed(
        destination,
        ack=ack,
        prefetch=10,
        buffer_bytes_max=1 << 20,
        drops_oldest=False,
        start=start,
        seen=Progress(),
        headers={},
        ack_level=ack_level,
    )


def subscribed(peer: Peer, feed: Feed) -> str:
    """Let the feed begin; returns its id on the connection."""
    peer.core.subscribe(feed)
    (subscribe,) = peer.frames()
    peer.receipt(subscribe.receipt)
    return subscribe.head.headers["id"]


def test_subscriptions_come_before_messages_that_are_sent_again() -> None:
    peer = Peer()
    peer.core.submit(peer.core.new_send("/queue/q", b"1", {}))
    peer.core.subscribe(queue())
    first = peer.log_in()
    peer.core.submit(peer.core.new_send("/queue/q", b"2", {}))
    peer.core.lost()

    second = peer.log_in()

    assert [frame.head.command for frame in first] == ["SUBSCRIBE", "SEND"]
    assert [frame.head.command for frame in second] == ["SUBSCRIBE", "SEND", "SEND"]
    assert [frame.body for frame in second[1:]] == [b"1", b"2"]
    assert peer.core.written_again == 2


def test_nothing_is_written_before_the_login_is_answered() -> None:
    peer = Peer()
    peer.core.begin("host")
    peer.core.submit(peer.core.new_send("/queue/q", b"1", {}))

    assert [frame.head.command for frame in peer.frames()] == ["CONNECT"]


def test_messages_for_a_subscription_that_was_left_are_ignored() -> None:
    peer = Peer()
    peer.log_in()
    feed = queue()
    id = subscribed(peer, feed)
    peer.core.unsubscribe(feed)

    peer.say("MESSAGE", ("subscription", id), ("message-id", "m"), ("ack", "1"), body=b"late")

    assert [frame.head.command for frame in peer.frames()] == ["UNSUBSCRIBE"]
    assert peer.core.take(feed) is None


def test_an_old_delivery_is_stale_on_the_next_connection_and_while_there_is_none() -> None:
    peer = Peer()
    peer.log_in()
    feed = queue()
    id = subscribed(peer, feed)
    for number in ("1", "2"):
        peer.say("MESSAGE", ("subscription", id), ("message-id", number), ("ack", number))
    one, two = peer.core.take(feed), peer.core.take(feed)
    assert one is not None and two is not None

    peer.core.lost()
    with pytest.raises(Stale):
        peer.core.settle(one, True, False)
    peer.log_in()
    with pytest.raises(Stale):
        peer.core.settle(two, True, False)

    assert peer.frames() == []
    assert peer.core.stale_settles == 2


def test_a_receipt_for_an_ack_that_is_lost_with_its_connection_leaves_the_outcome_open() -> None:
    peer = Peer()
    peer.log_in()
    feed = queue()
    id = subscribed(peer, feed)
    peer.say("MESSAGE", ("subscription", id), ("message-id", "m"), ("ack", "1"))
    delivery = peer.core.take(feed)
    assert delivery is not None
    request = peer.core.settle(delivery, True, True)
    assert request is not None

    peer.core.lost()

    assert isinstance(request.error, Stale)
    assert [frame.head.command for frame in peer.log_in()] == ["SUBSCRIBE"]


def test_the_level_of_acks_is_asked_for_where_a_receipt_is() -> None:
    peer = Peer()
    peer.log_in()
    feed = queue(ack_level="quorum")
    id = subscribed(peer, feed)
    for number in "12345":
        peer.say("MESSAGE", ("subscription", id), ("message-id", number), ("ack", number))
    waited, quick, refused, together, given_back = (peer.core.take(feed) for _ in range(5))
    assert waited and quick and refused and together and given_back

    peer.core.settle(waited, True, True)
    peer.core.settle(quick, True, False)
    peer.core.settle(refused, False, True)
    assert peer.core.hold(together) and peer.core.hold(given_back)
    peer.core.submit(peer.core.new_transaction([], [(together, True), (given_back, False)]))

    pending = {
        frame.head.headers["id"]: frame.head.headers.get("ack-level")
        for frame in peer.frames()
        if "id" in frame.head.headers
    }
    assert pending == {"1": "quorum", "2": None, "3": None, "4": "quorum", "5": None}


def test_an_error_about_nothing_in_particular_is_held_against_the_first_unanswered_request_after_three_times() -> None:
    peer = Peer()
    poison = peer.core.new_send("/queue/q", b"poison", {})
    harmless = peer.core.new_send("/queue/q", b"harmless", {})
    peer.core.submit(poison)
    peer.core.submit(harmless)
    for _ in range(3):
        assert not poison.done
        peer.log_in()
        peer.say("ERROR", ("error-code", "headers-too-large"), ("message", "too large"))
        peer.core.lost()

    assert isinstance(poison.error, Refused)
    assert poison.error.code == "headers-too-large"
    assert [frame.body for frame in peer.log_in()] == [b"harmless"]


@pytest.mark.parametrize("code", ["slow-consumer", "unknown-ack", "kicked", "destination-deleted", None])
def test_an_end_that_no_request_caused_is_held_against_none(code: str | None) -> None:
    peer = Peer()
    request = peer.core.new_send("/queue/q", b"", {})
    peer.core.submit(request)
    for _ in range(10):
        peer.log_in()
        if code is not None:
            peer.say("ERROR", ("error-code", code))
        peer.core.lost()

    assert not request.done


def test_a_subscription_that_the_next_node_refuses_ends_with_that_reason() -> None:
    peer = Peer()
    peer.log_in()
    feed = queue()
    subscribed(peer, feed)
    peer.core.lost()
    (subscribe,) = peer.log_in()
    peer.say("ERROR", ("error-code", "unknown-destination"), ("receipt-id", subscribe.receipt or ""))

    assert feed.state is FeedState.ENDED
    assert isinstance(feed.error, Refused)
    assert peer.frames() == []
    peer.core.lost()
    assert peer.log_in() == []


def test_a_refused_commit_is_aborted_because_its_connection_may_stay() -> None:
    peer = Peer()
    peer.log_in()
    request = peer.core.new_transaction([("/queue/q", b"", {})], [])
    peer.core.submit(request)
    begin, send, commit = peer.frames()
    assert send.head.headers["transaction"] == begin.head.headers["transaction"]

    peer.say("ERROR", ("error-code", "queue-full"), ("receipt-id", commit.receipt or ""))

    (abort,) = peer.frames()
    assert (abort.head.command, abort.head.headers) == ("ABORT", begin.head.headers)
    assert isinstance(request.error, Refused)


def held(peer: Peer) -> tuple[Delivered, Request]:
    """A message in a transaction whose COMMIT is written."""
    feed = queue()
    id = subscribed(peer, feed)
    peer.say("MESSAGE", ("subscription", id), ("message-id", "m"), ("ack", "1"))
    delivery = peer.core.take(feed)
    assert delivery is not None and peer.core.hold(delivery)
    request = peer.core.new_transaction([], [(delivery, True)])
    peer.core.submit(request)
    assert [frame.head.command for frame in peer.frames()] == ["BEGIN", "ACK", "COMMIT"]
    return delivery, request


def test_a_transaction_without_its_client_keeps_its_messages_until_it_is_answered() -> None:
    peer = Peer()
    peer.log_in()
    delivery, request = held(peer)

    peer.core.forget(request)
    peer.core.settle(delivery, False, False)

    assert peer.frames() == []
    peer.receipt(request.receipt)
    assert delivery.settled
    assert peer.core.requests.messages == 0


def test_messages_of_a_refused_transaction_without_its_client_are_given_back() -> None:
    peer = Peer()
    peer.log_in()
    delivery, request = held(peer)
    peer.core.forget(request)

    peer.say("ERROR", ("error-code", "queue-full"), ("receipt-id", request.receipt))

    abort, nack = peer.frames()
    assert abort.head.command == "ABORT"
    assert (nack.head.command, nack.head.headers["id"]) == ("NACK", "1")
    assert delivery.settled


def test_what_a_cumulative_nack_has_given_back_is_not_given_back_twice() -> None:
    peer = Peer()
    peer.log_in()
    feed = queue(AckMode.CLIENT)
    id = subscribed(peer, feed)
    for number in "12":
        peer.say("MESSAGE", ("subscription", id), ("message-id", f"m{number}"), ("ack", number))
    first, second = (peer.core.take(feed) for _ in range(2))
    assert first is not None and second is not None
    assert peer.core.hold(second) and peer.core.hold(first)
    request = peer.core.new_transaction([], [(second, True), (first, True)])
    peer.core.submit(request)
    peer.frames()
    peer.core.forget(request)

    peer.say("ERROR", ("error-code", "queue-full"), ("receipt-id", request.receipt))

    assert [frame.head.headers["id"] for frame in peer.frames() if frame.head.command == "NACK"] == ["2"]
    assert first.settled and second.settled


@pytest.mark.parametrize("is_applied", [True, False])
def test_in_client_mode_a_transaction_on_its_way_covers_what_came_before(is_applied: bool) -> None:
    peer = Peer()
    peer.log_in()
    feed = queue(AckMode.CLIENT)
    id = subscribed(peer, feed)
    for number in "123":
        peer.say("MESSAGE", ("subscription", id), ("message-id", f"m{number}"), ("ack", number))
    first, second, third = (peer.core.take(feed) for _ in range(3))
    assert first is not None and second is not None and third is not None
    assert peer.core.hold(second)
    request = peer.core.new_transaction([], [(second, True)])
    peer.core.submit(request)
    peer.frames()

    # The node may have applied it by now: an ACK that it covers would end the connection.
    assert peer.core.settle(first, True, False) is None
    assert peer.frames() == []
    if is_applied:
        peer.receipt(request.receipt)
    else:
        peer.say("ERROR", ("error-code", "queue-full"), ("receipt-id", request.receipt))
        peer.frames()

    peer.core.settle(third, True, False)
    assert [frame.head.headers["id"] for frame in peer.frames()] == ["3"]
    assert not feed.unsettled
    assert first.settled and second.settled


def test_messages_of_a_refused_transaction_wait_for_their_ack_as_before() -> None:
    peer = Peer()
    peer.log_in()
    delivery, request = held(peer)

    peer.say("ERROR", ("error-code", "queue-full"), ("receipt-id", request.receipt))
    peer.frames()
    peer.core.settle(delivery, True, False)

    (ack,) = peer.frames()
    assert (ack.head.command, ack.head.headers["id"]) == ("ACK", "1")


@pytest.mark.parametrize("frame", ["t{}", "t{}.1"])
def test_a_transaction_with_too_few_copies_is_applied_all_the_same(frame: str) -> None:
    peer = Peer()
    peer.log_in()
    delivery, request = held(peer)

    number = request.receipt.removeprefix("t")
    peer.say("ERROR", ("error-code", "too-few-copies"), ("receipt-id", frame.format(number)))
    peer.say("ERROR", ("error-code", "too-few-copies"), ("receipt-id", request.receipt))
    peer.core.settle(delivery, False, False)

    assert isinstance(request.error, Refused)
    assert peer.frames() == []
    assert not delivery.feed.unsettled


def test_messages_of_an_unanswered_transaction_are_stale_when_its_connection_ends() -> None:
    peer = Peer()
    peer.log_in()
    delivery, request = held(peer)
    peer.core.forget(request)

    peer.core.lost()

    assert peer.core.requests.messages == 0
    with pytest.raises(Stale):
        peer.core.settle(delivery, True, False)


def test_a_refused_frame_refuses_its_transaction() -> None:
    peer = Peer()
    peer.log_in()
    request = peer.core.new_transaction([("/queue/q", b"", {}), ("/nonsense", b"", {})], [])
    peer.core.submit(request)
    bad = peer.frames()[2]

    peer.say("ERROR", ("error-code", "bad-destination"), ("receipt-id", bad.receipt or ""))

    assert isinstance(request.error, Refused)


def test_receipts_of_the_frames_of_a_transaction_do_not_answer_it() -> None:
    peer = Peer()
    peer.log_in()
    request = peer.core.new_transaction([("/queue/q", b"", {})], [])
    peer.core.submit(request)
    _, send, commit = peer.frames()

    peer.receipt(send.receipt)
    assert not request.done
    peer.receipt(commit.receipt)
    assert request.done and request.error is None


def test_a_fanout_is_continued_after_what_was_seen_and_what_a_node_repeats_is_dropped() -> None:
    peer = Peer()
    peer.log_in()
    feed = queue(destination="/fanout/f")
    id = subscribed(peer, feed)
    a, b = Origin("a", 1), Origin("b", 2)
    for dot in (f"{a}-3", f"{b}-1", f"{a}-7"):
        peer.say("MESSAGE", ("subscription", id), ("message-id", dot))
    peer.core.lost()

    (again,) = peer.log_in()
    for dot in (f"{a}-3", f"{a}-7", f"{b}-2"):
        peer.say("MESSAGE", ("subscription", again.head.headers["id"]), ("message-id", dot))

    assert parse_vector(again.head.headers["qmq-resume"]) == {a: 7, b: 1}
    seen = []
    while (delivery := peer.core.take(feed)) is not None:
        seen.append(delivery.headers["message-id"])
    assert seen == [f"{a}-3", f"{b}-1", f"{a}-7", f"{b}-2"]


def gap(peer: Peer, id: str, text: str) -> None:
    peer.say("MESSAGE", ("subscription", id), ("message-id", "a-0000000000000001-m1"), ("qmq-gap", text))


def test_a_gap_is_handed_out_in_its_place_and_counts_for_the_position() -> None:
    peer = Peer()
    peer.log_in()
    feed = queue(destination="/fanout/f")
    id = subscribed(peer, feed)
    a, b = Origin("a", 1), Origin("b", 2)
    peer.say("MESSAGE", ("subscription", id), ("message-id", f"{a}-3"))
    gap(peer, id, f"{a}=4-8,{b}=1-2")
    gap(peer, id, f"{a}=4-8")
    peer.say("MESSAGE", ("subscription", id), ("message-id", f"{a}-9"))
    peer.core.lost()

    (again,) = peer.log_in()

    assert parse_vector(again.head.headers["qmq-resume"]) == {a: 9, b: 2}
    taken = []
    while (delivery := peer.core.take(feed)) is not None:
        taken.append(delivery.headers.get("qmq-gap"))
        if delivery.headers.get("qmq-gap"):
            assert str(feed.handed) == f"{a}=8,{b}=2"
    assert taken == [None, f"{a}=4-8,{b}=1-2", None]


def test_a_start_at_the_first_kept_message_misses_nothing_and_learns_where_that_is() -> None:
    peer = Peer()
    peer.log_in()
    feed = queue(destination="/fanout/f")
    peer.core.subscribe(feed)
    (subscribe,) = peer.frames()
    assert subscribe.head.headers["qmq-resume"] == ""
    a = Origin("a", 1)
    gap(peer, subscribe.head.headers["id"], f"{a}=1-8")
    assert peer.core.take(feed) is None
    peer.core.lost()

    (again,) = peer.log_in()

    assert parse_vector(again.head.headers["qmq-resume"]) == {a: 8}
    peer.say("MESSAGE", ("subscription", again.head.headers["id"]), ("message-id", f"{a}-9"))
    gap(peer, again.head.headers["id"], f"{a}=10-11")
    assert [
        delivery.headers.get("qmq-gap") for delivery in (peer.core.take(feed), peer.core.take(feed)) if delivery
    ] == [
        None,
        f"{a}=10-11",
    ]


@pytest.mark.parametrize("text", ["", "a", "a=1", "a=x-2", "=1-2", "a=1-" + "9" * 20])
def test_what_is_no_gap_says_nothing(text: str) -> None:
    assert parse_gap(text) == {}


def test_a_fanout_from_next_on_a_node_that_cannot_say_its_position_starts_there_again_each_time() -> None:
    peer = Peer()
    peer.log_in()
    peer.core.subscribe(queue(destination="/fanout/f", start="next"))
    (pending,) = peer.frames()
    peer.say("RECEIPT", ("receipt-id", pending.receipt or ""), ("status", '{"vector":{},"cut":true}'))
    (subscribe,) = peer.frames()
    peer.receipt(subscribe.receipt)
    peer.say("MESSAGE", ("subscription", subscribe.head.headers["id"]), ("message-id", f"{Origin('a', 1)}-5"))
    peer.core.lost()

    (again,) = peer.log_in()

    for frame in (subscribe, again):
        assert frame.head.headers["x-stream-offset"] == "next"
        assert "qmq-resume" not in frame.head.headers


def test_a_closed_core_answers_all_callers_and_asks_nothing() -> None:
    peer = Peer()
    peer.log_in()
    feed = queue()
    subscribed(peer, feed)
    request = peer.core.new_send("/queue/q", b"", {})
    peer.core.submit(request)
    why = Refused("login-failed", "no")

    peer.core.close(why)

    assert isinstance(request.error, NotConnected) and request.error.__cause__ is why
    assert isinstance(feed.error, NotConnected)
    assert {request, feed} <= set(peer.core.take_changed())
    with pytest.raises(NotConnected):
        peer.core.submit(peer.core.new_send("/queue/q", b"", {}))
    peer.core.lost()
    assert peer.core.phase is Phase.CLOSED


def test_a_closed_core_stays_closed_when_the_answer_to_its_login_comes() -> None:
    peer = Peer()
    peer.core.begin("host")
    peer.core.close(None)

    peer.say("CONNECTED", ("version", "1.2"))
    peer.core.lost()

    with pytest.raises(NotConnected):
        peer.core.check_open()


def test_beats_are_agreed_as_the_specification_says() -> None:
    peer = Peer(beat_ms=5000)
    peer.log_in(heart_beat="10000,2000")

    assert peer.core.send_beat_seconds == 5.0
    assert peer.core.receive_beat_seconds == 10.0
    peer.core.beat()
    assert peer.core.take_output() == b"\n"


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"MESSAGE\n\n\0", b"CONNECTED\nversion:9\n\n\0"])
def test_what_is_not_stomp_is_an_error(data: bytes) -> None:
    peer = Peer()
    peer.core.begin("host")

    with pytest.raises(RemoteProtocolError):
        peer.core.receive(data)


# Vectors

ORIGINS = st.builds(Origin, st.sampled_from(["a", "b-1", "node"]), st.integers(0, 2**64 - 1))


@given(st.lists(st.tuples(ORIGINS, st.integers(1, 50))))
def test_progress_takes_each_message_id_once_and_says_what_the_node_reads(ids: list[tuple[Origin, int]]) -> None:
    progress = Progress()
    model: dict[Origin, int] = {}
    for origin, sequence in ids:
        assert progress.advance(f"{origin}-{sequence}") == (sequence > model.get(origin, 0))
        model[origin] = max(sequence, model.get(origin, 0))

    assert parse_vector(progress.header()) == model
    assert parse_vector(str(parse_progress(str(progress)))) == model


def test_a_header_that_would_grow_too_long_leaves_out_the_oldest_incarnations_and_the_vector_keeps_them() -> None:
    progress = Progress()
    for incarnation in range(500):
        progress.advance(f"{Origin('node-with-a-long-name', incarnation)}-1")
    progress.advance(f"{Origin('b', 7)}-1")
    for incarnation in range(500, 600):
        progress.advance(f"{Origin('node-with-a-long-name', incarnation)}-1")

    header = progress.header()

    assert len(header) <= HEADER_BYTES_MAX
    named = parse_vector(header)
    assert Origin("b", 7) in named
    assert Origin("node-with-a-long-name", 599) in named
    assert Origin("node-with-a-long-name", 0) not in named
    assert not progress.advance(f"{Origin('node-with-a-long-name', 0)}-1")


def test_a_vector_is_bounded() -> None:
    progress = Progress()
    for incarnation in range(ORIGINS_MAX + 10):
        progress.advance(f"{Origin('a', incarnation)}-1")

    assert len(str(progress).split(",")) == ORIGINS_MAX


@pytest.mark.parametrize("text", ["a", "a=1", "a-0000000000000001=", "a-0000000000000001=x", "first"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_progress(text)


@pytest.mark.parametrize("id", ["", "5", "ID-host-x", "-1", "a-0000000000000001-m3"])
def test_a_message_id_that_is_no_dot_is_always_new(id: str) -> None:
    progress = Progress()

    assert progress.advance(id) and progress.advance(id)
    assert progress.header() == ""


@pytest.mark.parametrize("status", ["", "{}", "[]", '{"vector":[]}', '{"vector":{"x":1}}', '{"vector":{},"cut":true}'])
def test_a_status_without_a_position_names_none(status: str) -> None:
    assert vector_of(status) is None


def test_a_status_names_the_position_of_its_node() -> None:
    origin = str(Origin("a", 1))

    assert vector_of(json.dumps({"vector": {origin: 5}})) == f"{origin}=5"
    assert vector_of(json.dumps({"vector": {}})) == ""


# Rotation


class Highest(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return b


def rotation(*addresses: str) -> Rotation:
    return Rotation(addresses, Highest().uniform, seconds_min=0.1, seconds_max=1.0)


def test_all_nodes_are_tried_before_the_first_wait_and_the_wait_doubles_up_to_its_bound() -> None:
    nodes = rotation("a:1", "b:2")
    walked = []
    for _ in range(14):
        address, seconds = nodes.next()
        walked.append((address.host, seconds))
        nodes.failed()

    waits = [0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert walked == [(host, seconds if host == "a" else 0.0) for seconds in waits for host in "ab"]


def test_after_a_connection_that_stood_the_next_node_is_tried_at_once() -> None:
    nodes = rotation("a:1", "b:2")
    for _ in range(9):
        nodes.next()
        nodes.failed()
    nodes.next()
    nodes.stood()

    assert nodes.next() == (parse_address("a:1"), 0.0)


def test_many_failures_do_not_overflow() -> None:
    nodes = rotation("a:1")
    for _ in range(5000):
        nodes.failed()

    assert nodes.next()[1] == 1.0


@pytest.mark.parametrize(("text", "host", "port"), [("a:1", "a", 1), ("[::1]:61613", "::1", 61613), (" a:1 ", "a", 1)])
def test_addresses_are_read_as_people_write_them(text: str, host: str, port: int) -> None:
    address = parse_address(text)

    assert address == (host, port)
    assert str(address) == text.strip()
