"""Frames of each kind against bytes recorded before: the wire format and its refusals do not change unnoticed."""

import msgpack
import pytest

from qmq.broker.consumers.subscription import Asks
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Envelope, Message, Retain
from qmq.broker.takeover.leases import Beat, Bid, Term
from qmq.errors import MeshError
from qmq.model.dots import Dot, Origin
from qmq.model.members import Listing, Retirement, Standing
from qmq.replication.links.outbox import encode_message
from qmq.replication.protocol.frame_table import FROM_PULLING_SIDE, FROM_SERVING_SIDE, decode, pack
from qmq.replication.protocol.frames import (
    Ack,
    Ask,
    Batches,
    Credit,
    Forgotten,
    Gap,
    Heard,
    HeartbeatFrame,
    Held,
    Holds,
    Hole,
    InterestPart,
    Lend,
    MembershipFrame,
    MeshFrame,
    Passed,
    PeerRequest,
    Reach,
    Release,
    Replies,
    RequestFrame,
    ResponseFrame,
    Retained,
    Returned,
    Settled,
    Topics,
    Vote,
    Waiting,
    Welcome,
)
from qmq.replication.protocol.values import Sender

A, B = Origin("a", 1), Origin("b", (1 << 64) - 1)
TABLE = {**FROM_PULLING_SIDE, **FROM_SERVING_SIDE}


def message(kind: DestinationKind, destination: str, origin: Origin, sequence: int) -> Message:
    return Message(Envelope(destination, kind, b"k:v\n", sequence > 0), b"\0body", origin, sequence, 17)


def lent() -> list[Message]:
    """One of the sender's own, and one of another owner, for consumers with a selector, that has failed twice."""
    plain = message(DestinationKind.QUEUE, "/queue/q", A, 5)
    red = message(DestinationKind.QUEUE, "/queue/q", B, 6)
    red.envelope, red.lent_as, red.attempts = plain.envelope, "color = 'red'\x000", 2
    return [plain, red]


def retained() -> Message:
    one = message(DestinationKind.TOPIC, "/topic/t", B, -4)
    one.envelope.retain = Retain.SET
    return one


STANDING = Standing(
    listing=Listing(3, frozenset({"b", "a"})),
    disk="0123",
    is_learner=True,
    retired=(Retirement(node="c", adopter="a", sealed={Origin("c", 4): 5}),),
    heard_of={"d": 1},
)
TOPIC = message(DestinationKind.TOPIC, "/topic/t", A, -3)
REPLY = message(DestinationKind.REPLY, "/reply-queue/b-0000000000000001.1.2.3", A, -1)

RECORDED: list[tuple[MeshFrame, str, str]] = [
    (
        Ack(3, {A: 7, B: 9}, {A: 6}, (A, B), 11),
        "/mesh/ack",
        "950382a161920107a16292cfffffffffffffffff0981a16192010694a16101a162cfffffffffffffffff0b",
    ),
    (
        Credit([("/queue/q", 5), ("/queue/q\0a = 'b'\x0017", -1)]),
        "/mesh/credit",
        "9194a82f71756575652f7105b32f71756575652f710061203d20276227003137ff",
    ),
    (Settled([Dot(A, 1), Dot(A, 3), Dot(B, -4)]), "/mesh/settled", "919293a1610192010393a162cfffffffffffffffff91fc"),
    (
        Returned([(Dot(A, 2), Back.FAILED, None), (Dot(B, 1), Back.REJECTED, Asks(5, None, ""))]),
        "/mesh/returned",
        "919aa161010203c0a162cfffffffffffffffff01049305c0a0",
    ),
    (Held([Dot(A, 1)], {B: 9}), "/mesh/held", "929193a16101910181a16292cfffffffffffffffff09"),
    (Welcome({A: 3}, 12), "/mesh/welcome", "9281a1619201030c"),
    (Gap([(A, 3), (B, 1)]), "/mesh/gap", "9182a161920103a16292cfffffffffffffffff01"),
    (Hole((A, B)), "/mesh/hole", "9194a16101a162cfffffffffffffffff"),
    (Topics([TOPIC]), "/mesh/topics", "919195a82f746f7069632f74c4046b3a760ac29501fd1100c40500626f647900"),
    (
        Lend(lent(), 13, {"b": 3}, "a"),
        "/mesh/lend",
        "939295a82f71756575652f71c4046b3a760ac39501051100c40500626f64790097a82f71756575652f71c4046b3a760ac395"
        "cfffffffffffffffff061102c40500626f647900af636f6c6f72203d2027726564270030a1620d81a16203",
    ),
    (Lend([], 13), "/mesh/lend", "92900d"),
    (
        Retained([retained()]),
        "/mesh/retained",
        "9198a82f746f7069632f74c4046b3a760aa162cffffffffffffffffffc1101c40500626f6479",
    ),
    (Forgotten(["/queue/q"]), "/mesh/forgotten", "9191a82f71756575652f71"),
    (Waiting({"/queue/q": True}), "/mesh/waiting", "9181a82f71756575652f71c3"),
    (
        Replies([REPLY]),
        "/mesh/replies",
        "919195d9252f7265706c792d71756575652f622d303030303030303030303030303030312e312e322e33c4046b3a760ac295"
        "01ff1100c40500626f647900",
    ),
    (RequestFrame(7, PeerRequest("kind", b"what?")), "/mesh/question", "9307a46b696e64c405776861743f"),
    (ResponseFrame(7, b"that"), "/mesh/answer", "9207c40474686174"),
    (
        MembershipFrame(STANDING),
        "/mesh/members",
        "970392a161a162a430313233c393a163a16181a163920405c081a16401",
    ),
    (Reach(3, frozenset({B, A})), "/mesh/reach", "920394a16101a162cfffffffffffffffff"),
    (
        InterestPart(B, -1, 7, 2, 1, False, {"/topic/a": True, "/topic/b.*": False}),
        "/mesh/wants",
        "98a162cfffffffffffffffffff070201c282a82f746f7069632f61c3aa2f746f7069632f622e2ac2",
    ),
    (Heard([(A, 7), (B, -1)]), "/mesh/heard", "9196a1610107a162cfffffffffffffffffff"),
    (
        Passed("b", [TOPIC]),
        "/mesh/passed",
        "94a162a1619195a82f746f7069632f74c4046b3a760ac29501fd1100c40500626f647900c2",
    ),
    (
        HeartbeatFrame(Beat(5, 0, True, False, {"a": 0, "b": 3}, {"b": 4})),
        "/mesh/beat",
        "960500c3c282a16100a1620381a16204",
    ),
    (Ask(Bid("a", 4, "b", Term(3, "c"))), "/mesh/bid", "94a16104a1629203a163"),
    (Vote("a", 4, {A: 7}), "/mesh/vote", "93a1610481a161920107"),
    (Release("a", 3, {A: 7}, {"b": [Dot(A, 2)]}), "/mesh/release", "94a1610381a16192010781a1629193a161019102"),
    (Holds("a", 4, [Dot(A, 2), Dot(B, 5)]), "/mesh/holds", "93a161049293a16101910293a162cfffffffffffffffff9105"),
]

REFUSED: list[tuple[str, object, str]] = [
    ("/mesh/ack", [3, {"a": [1]}, {}, None, 11], "an array of groups of 2 was expected, not 1 elements"),
    ("/mesh/credit", [["/queue/q"]], "an array of groups of 2 was expected, not 1 elements"),
    ("/mesh/settled", [[["a", 1]]], "an array of at least 3 was expected, not list"),
    ("/mesh/returned", [["a", 1, 2, 9, None]], "a number from 0 to 5 was expected, not 9"),
    (
        "/mesh/held",
        [[["a", 1, [1 << 63]]], {}],
        "a number from -9223372036854775807 to 9223372036854775807 was expected, not 9223372036854775808",
    ),
    ("/mesh/welcome", [{}], "an array of at least 2 was expected, not list"),
    ("/mesh/gap", [[]], "a map was expected, not list"),
    ("/mesh/hole", [["a", "b"]], "a number from 0 to 18446744073709551615 was expected, not 'b'"),
    ("/mesh/topics", [[["/queue/q", b"", False, [], 0]]], "a topic was expected, not '/queue/q'"),
    ("/mesh/lend", [[], 0, {"A": 1}], "a node's name was expected, not 'A'"),
    ("/mesh/retained", [["/topic/t.*", b"", "a", 1, -1, 0, 1, b""]], "'/topic/t.*' is no single topic"),
    ("/mesh/forgotten", [["/topic/t"]], "a queue was expected, not '/topic/t'"),
    ("/mesh/waiting", [{"/queue/q": 1}], "true or false was expected, not 1"),
    (
        "/mesh/replies",
        [[["/reply-queue/x", b"", False, [], 0]]],
        "'/reply-queue/x': A reply goes to the address of reply-to, /reply-queue/…, unchanged.",
    ),
    ("/mesh/question", [7, "k" * 33, b""], "at most 32 characters were expected, not 33"),
    ("/mesh/answer", [-1, b""], "a number from 0 to 9223372036854775807 was expected, not -1"),
    ("/mesh/members", [3, ["a"], "", True, ["c"], None, {}], "an array of groups of 3 was expected, not 1 elements"),
    (
        "/mesh/members",
        [3, [], "", True, ["c", "a", {}] * 1001, None, {}],
        "at most 1000 elements were expected, not 1001",
    ),
    (
        "/mesh/members",
        [3, [f"n{i}" for i in range(1001)], "", True, [], None, {}],
        "at most 1000 elements were expected, not 1001",
    ),
    ("/mesh/members", [3, [], "d" * 101, True, [], None, {}], "at most 100 characters were expected, not 101"),
    ("/mesh/reach", [0, [1, "a"]], "a node's name was expected, not 1"),
    ("/mesh/wants", ["a", 1, -2, 0, 0, 0, True, {}], "a number from -1 to 9223372036854775807 was expected, not -2"),
    ("/mesh/heard", [["a", 1]], "an array of groups of 3 was expected, not 2 elements"),
    ("/mesh/passed", ["b", "a", [], 1], "true or false was expected, not 1"),
    ("/mesh/beat", [5, 0, 1, False, {}, {}], "true or false was expected, not 1"),
    ("/mesh/bid", ["a", 0, "b", None], "a number from 1 to 9223372036854775807 was expected, not 0"),
    ("/mesh/vote", ["a", 4, None], "a map was expected, not NoneType"),
    ("/mesh/release", ["a", 3, None, []], "a map was expected, not list"),
    ("/mesh/holds", ["a", 4, {}], "an array of at least 0 was expected, not dict"),
]


def test_every_kind_of_frame_is_recorded() -> None:
    assert {destination for _, destination, _ in RECORDED} == set(TABLE)
    assert {destination for destination, _, _ in REFUSED} == set(TABLE)


@pytest.mark.parametrize(
    ("frame", "destination", "recorded"), RECORDED, ids=[destination for _, destination, _ in RECORDED]
)
def test_frame_has_its_recorded_bytes(frame: MeshFrame, destination: str, recorded: str) -> None:
    found, body = pack(frame)

    assert (found, body.hex()) == (destination, recorded)


def test_batches_have_their_recorded_bytes_as_a_whole_frame() -> None:
    assert encode_message(Batches(7, b"batches")) == (
        b"MESSAGE\ndestination:/mesh/journal\nsubscription:0\nmessage-id:7\n"
        b"content-type:application/x-qmq-batch\ncontent-length:7\n\nbatches\0\n"
    )


@pytest.mark.parametrize(
    ("frame", "destination", "recorded"), RECORDED, ids=[destination for _, destination, _ in RECORDED]
)
def test_recorded_bytes_decode_and_encode_to_themselves(frame: MeshFrame, destination: str, recorded: str) -> None:
    found = decode(TABLE, destination, bytes.fromhex(recorded), Sender("a"))

    assert type(found) is type(frame)
    assert pack(named(found)) == (destination, bytes.fromhex(recorded))


def test_the_policies_that_earlier_versions_reported_are_ignored() -> None:
    recorded = "970392a161a162a430313233c393a163a16181a16392040581a82f71756575652f2aa43061316281a16401"

    assert decode(TABLE, "/mesh/members", bytes.fromhex(recorded), Sender("a")) == MembershipFrame(STANDING)


def named(frame: MeshFrame) -> MeshFrame:
    """A sender does not travel: the link knows it."""
    return Lend(frame.messages, frame.sent_us, frame.terms, "a") if isinstance(frame, Lend) else frame


@pytest.mark.parametrize(("destination", "fields", "why"), REFUSED)
def test_malformed_frame_is_refused_with_its_reason(destination: str, fields: object, why: str) -> None:
    with pytest.raises(MeshError) as refused:
        decode(TABLE, destination, msgpack.packb(fields), Sender("a"))

    assert (refused.value.code, refused.value.message) == ("bad-frame", f"{destination}: {why}")
