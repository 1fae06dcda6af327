"""One side of a link as bytes: the table, its refusals, and what garbage does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.model.dots import Origin
from qmq.replication.links.outbox import encode_message, encode_send
from qmq.replication.protocol.conversation import NEXT_STATE, UNPROVEN_BYTES_MAX, Conversation, LinkSide, LinkState
from qmq.replication.protocol.frame_table import FROM_PULLING_SIDE, FROM_SERVING_SIDE, JOURNAL
from qmq.replication.protocol.frames import Ack, Batches, MeshFrame, Welcome
from qmq.replication.protocol.handshake import Answering, Dialling
from qmq.wire.stomp.writer import encode_frame

from .test_handshake import NONCE_A, NONCE_B, identity

SAMPLES: dict[str, bytes] = {
    "CONNECT": Dialling(identity("b"), "a", NONCE_B).connect(),
    "SUBSCRIBE": encode_frame("SUBSCRIBE", [("id", "0"), ("destination", JOURNAL)]),
    "UNSUBSCRIBE": encode_frame("UNSUBSCRIBE", [("id", "0")]),
    "ACK": encode_frame("ACK", [("id", "0")]),
    "NACK": encode_frame("NACK", [("id", "0")]),
    "BEGIN": encode_frame("BEGIN", [("transaction", "0")]),
    "COMMIT": encode_frame("COMMIT", [("transaction", "0")]),
    "ABORT": encode_frame("ABORT", [("transaction", "0")]),
    "DISCONNECT": encode_frame("DISCONNECT", []),
    "CONNECTED": encode_frame("CONNECTED", [("version", "1.2")]),
    "RECEIPT": encode_frame("RECEIPT", [("receipt-id", "0")]),
    "ERROR": encode_frame("ERROR", [("error-code", "wrong-mesh"), ("message", "go away")]),
    "/queue/jobs": encode_frame("SEND", [("destination", "/queue/jobs")], b"x"),
    **{name: encode_frame("SEND", [("destination", name)], b"\x90") for name in FROM_PULLING_SIDE},
    **{name: encode_frame("MESSAGE", [("destination", name)], b"\x90") for name in FROM_SERVING_SIDE},
    JOURNAL: encode_frame("MESSAGE", [("destination", JOURNAL)], b""),
}


def pair() -> tuple[Conversation, Conversation, bytes]:
    """(follower, server, CONNECT)."""
    dialling = Dialling(identity("b"), "a", NONCE_B)
    return Conversation(dialling), Conversation(Answering(identity("a"), NONCE_A, None)), dialling.connect()


def take_reply(conversation: Conversation) -> bytes:
    reply, conversation.reply = conversation.reply, b""
    return reply


def at(side: LinkSide, state: LinkState) -> Conversation:
    """A conversation that has come as far as `state`."""
    follower, server, connect = pair()
    if state is not LinkState.CONNECTING:
        server.receive(connect)
        connected = take_reply(server)
        if side is LinkSide.FOLLOWER:
            follower.receive(connected)
        if state is LinkState.OPEN:
            if side is LinkSide.FOLLOWER:
                follower.receive(encode_message(Welcome({})))
            else:
                follower.receive(connected)
                server.receive(take_reply(follower))
        elif state is LinkState.ENDED:
            (follower if side is LinkSide.FOLLOWER else server).receive(b"nonsense\n\n\0")
    found = follower if side is LinkSide.FOLLOWER else server
    assert found.state is state
    take_reply(found)
    return found


def test_frames_pass_both_ways_once_the_link_is_open() -> None:
    follower, server, connect = pair()
    ack = Ack(0, {Origin("b", 1): 2}, {}, None)

    assert server.receive(connect) == []
    assert follower.receive(take_reply(server)) == []
    assert follower.is_proven and not server.is_proven
    found = server.receive(take_reply(follower) + encode_send(ack))
    assert server.is_proven
    back = follower.receive(encode_message(Welcome({})) + b"\n" + encode_message(Batches(1, b"b")))

    assert found == [ack]
    assert back == [Welcome({}), Batches(1, b"b")]
    assert (follower.error, server.error) == (None, None)


@pytest.mark.parametrize("side", LinkSide)
@pytest.mark.parametrize("state", LinkState)
@pytest.mark.parametrize("what", SAMPLES)
def test_what_the_table_does_not_list_is_refused_and_ends_the_link(side: LinkSide, state: LinkState, what: str) -> None:
    listed = what in NEXT_STATE[side][state]
    conversation = at(side, state)
    before = conversation.error

    frames = conversation.receive(SAMPLES[what])

    if state is LinkState.ENDED:
        assert (frames, conversation.error) == ([], before)
    elif not listed:
        assert frames == []
        assert conversation.error is not None
        assert conversation.state is LinkState.ENDED
    assert conversation.reply == b"" or listed


def test_the_table_knows_every_frame() -> None:
    for side, table in (
        (LinkSide.SERVER, FROM_PULLING_SIDE),
        (LinkSide.FOLLOWER, {**FROM_SERVING_SIDE, JOURNAL: None}),
    ):
        reachable = {name for row in NEXT_STATE[side].values() for name in row if name.startswith("/")}
        assert reachable == set(table)


def test_an_error_frame_says_why_the_peer_refused() -> None:
    conversation = at(LinkSide.FOLLOWER, LinkState.CONNECTING)

    conversation.receive(SAMPLES["ERROR"])

    assert conversation.error is not None
    assert (conversation.error.code, conversation.error.message) == ("refused-wrong-mesh", "the peer says: 'go away'")


def test_frames_before_the_broken_one_are_still_good() -> None:
    conversation = at(LinkSide.SERVER, LinkState.OPEN)
    good = Ack(0, {}, {}, None)

    frames = conversation.receive(encode_send(good) + SAMPLES["/queue/jobs"] + encode_send(good))

    assert frames == [good]
    assert conversation.error is not None
    assert conversation.error.code == "bad-frame"


def test_no_connection_is_read_for_long_before_its_proof() -> None:
    conversation = at(LinkSide.SERVER, LinkState.PROVING)
    claim = b"SUBSCRIBE\nid:" + b"0" * 3000 + b"\n"

    for _ in range(UNPROVEN_BYTES_MAX // len(claim) + 1):
        assert conversation.receive(claim if conversation.error is None else b"") == []
        claim = b"x:" + b"0" * 3000 + b"\n"

    assert conversation.error is not None
    assert conversation.error.code == "login-too-large"


def test_a_connect_without_end_is_refused_by_the_codec() -> None:
    conversation = at(LinkSide.SERVER, LinkState.CONNECTING)

    conversation.receive(b"CONNECT\n" + b"a:b\n" * 5000)

    assert conversation.error is not None
    assert conversation.error.code in ("login-too-large", "too-many-headers")


def test_a_frame_that_names_a_giant_body_is_refused_before_it_comes() -> None:
    conversation = at(LinkSide.SERVER, LinkState.OPEN)

    conversation.receive(b"SEND\ndestination:/mesh/ack\ncontent-length:999999999\n\n")

    assert conversation.error is not None
    assert conversation.error.code == "body-too-large"


@given(side=st.sampled_from(LinkSide), data=st.binary(max_size=300), state=st.sampled_from(LinkState))
def test_any_bytes_give_frames_or_one_error(side: LinkSide, data: bytes, state: LinkState) -> None:
    conversation = at(side, state)

    conversation.receive(data)
    first = conversation.error
    conversation.receive(data)

    assert first is None or conversation.error is first


@given(cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_any_split_of_the_stream_gives_the_same_frames(cuts: list[int]) -> None:
    server = at(LinkSide.SERVER, LinkState.OPEN)
    stream = b"".join(encode_send(Ack(number, {Origin("b", number): 1}, {}, None)) + b"\n" for number in range(5))
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]

    frames: list[MeshFrame] = []
    for begin, end in zip(places, places[1:], strict=False):
        frames += server.receive(stream[begin:end])

    assert [frame.frames for frame in frames if isinstance(frame, Ack)] == [0, 1, 2, 3, 4]
