"""Handshakes: every false claim is refused with its own code."""

from dataclasses import replace

import pytest

from qmq.errors import MeshError
from qmq.model.dots import Origin
from qmq.replication.protocol import handshake
from qmq.replication.protocol.handshake import (
    DIAL,
    FORMAT,
    NONCE_CHARACTERS,
    Answering,
    Dialling,
    Partner,
    PeerIdentity,
    is_proof,
    make_proof,
)
from qmq.wire.stomp.connection import Connection
from qmq.wire.stomp.frames import Frame
from qmq.wire.stomp.head import Head
from qmq.wire.stomp.states import Role

SECRET = "correct horse battery staple"
NONCE_A, NONCE_B = "a" * NONCE_CHARACTERS, "b" * NONCE_CHARACTERS
ABC = frozenset("abc")


def identity(name: str, **changes: object) -> PeerIdentity:
    mine = PeerIdentity(
        mesh="test", peers_version=3, origin=Origin(name, 0xBEEF), members=ABC, secret=SECRET, beat_ms=1000
    )
    return replace(mine, **changes)  # type: ignore[arg-type]


def connect_frame(data: bytes) -> Frame:
    return Connection(Role.SERVER).receive(data)[0]


def connected_frame(data: bytes) -> Frame:
    return Connection(Role.CLIENT).receive(data)[0]


def subscribe_frame(data: bytes) -> Frame:
    codec = Connection(Role.SERVER)
    return codec.receive(b"CONNECT\naccept-version:1.2\n\n\0" + data)[1]


def changed(frame: Frame, **headers: str | None) -> Frame:
    """`frame` with headers replaced (`_` for `-`), or left out (None)."""
    found: dict[str, str] = dict(frame.head.headers)
    for name, value in headers.items():
        found.pop(name.replace("_", "-"), None)
        if value is not None:
            found[name.replace("_", "-")] = value
    return Frame(Head(frame.head.command, found, frame.head.version), frame.body, None)


def meet(b: PeerIdentity, a: PeerIdentity, to: str = "a", certificate: str | None = None) -> tuple[Partner, Partner]:
    """b dials a; (what b believes, what a believes)."""
    certificate_names = None if certificate is None else lambda: frozenset(certificate.split())
    dialling, answering = Dialling(b, to, NONCE_B), Answering(a, NONCE_A, certificate_names)
    seen_by_a, connected = answering.connect(connect_frame(dialling.connect()))
    seen_by_b, subscribe = dialling.connected(connected_frame(connected))
    answering.subscribe(subscribe_frame(subscribe))
    return seen_by_b, seen_by_a


def code_of(b: PeerIdentity, a: PeerIdentity, to: str = "a", certificate: str | None = None) -> str:
    with pytest.raises(MeshError) as refused:
        meet(b, a, to, certificate)
    return refused.value.code


def test_two_nodes_of_a_mesh_believe_each_other() -> None:
    seen_by_b, seen_by_a = meet(identity("b", peers_version=4, beat_ms=500), identity("a"))

    assert (seen_by_a.origin, seen_by_a.peers_version, seen_by_a.beat_ms) == (Origin("b", 0xBEEF), 4, 500)
    assert (seen_by_b.origin, seen_by_b.peers_version, seen_by_b.beat_ms) == (Origin("a", 0xBEEF), 3, 1000)


def test_every_wrong_partner_is_refused_with_its_own_code() -> None:
    a = identity("a")

    assert code_of(identity("b", mesh="other"), a) == "wrong-mesh"
    assert code_of(identity("d"), a) == "unknown-node"
    assert code_of(identity("b"), a, to="c") == "wrong-node"
    assert code_of(identity("a"), a) == "own-name"
    assert code_of(identity("b", secret="another secret altogether"), a) == "bad-proof"
    assert code_of(identity("b", secret=None), a) == "bad-proof"
    assert code_of(identity("b", beat_ms=0), a) == "bad-frame"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"mesh": None}, "not-a-node"),
        ({"node": None}, "unknown-node"),
        ({"format": str(FORMAT + 1)}, "future-format"),
        ({"format": None}, "bad-frame"),
        ({"format": "-1"}, "bad-frame"),
        ({"takeover": None}, "bad-frame"),
        ({"takeover": "1"}, "takeover-differs"),
        ({"incarnation": "1"}, "bad-frame"),
        ({"incarnation": "+" + "0" * 15}, "bad-frame"),
        ({"incarnation": "0" * 16}, "bad-proof"),
        ({"peers_version": "x"}, "bad-frame"),
        ({"heart_beat": "x,1"}, "bad-frame"),
        ({"heart_beat": None}, "bad-frame"),
        ({"nonce": "short"}, "bad-proof"),
        ({"nonce": "c" * NONCE_CHARACTERS}, "bad-proof"),
        ({"proof": None}, "bad-proof"),
        ({"proof": ""}, "bad-proof"),
        ({"proof": "é"}, "bad-proof"),
        ({"node": "c"}, "bad-proof"),
    ],
)
def test_a_connect_with_one_header_wrong_is_refused(headers: dict[str, str | None], code: str) -> None:
    frame = connect_frame(Dialling(identity("b"), "a", NONCE_B).connect())

    with pytest.raises(MeshError) as refused:
        Answering(identity("a"), NONCE_A, None).connect(changed(frame, **headers))

    assert refused.value.code == code


@pytest.mark.parametrize(("here", "there"), [(10_000, 20_000), (0, 10_000), (10_000, 0)])
def test_a_node_with_another_takeover_time_is_refused(here: int, there: int) -> None:
    assert code_of(identity("b", takeover_ms=there), identity("a", takeover_ms=here)) == "takeover-differs"
    meet(identity("b", takeover_ms=there), identity("a", takeover_ms=there))


def test_each_side_knows_the_features_that_the_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way for what not every node of one `FORMAT` can do: the other side uses it only where it is named."""
    monkeypatch.setattr(handshake, "FEATURES", ("compression", "telepathy"))
    dialling = Dialling(identity("b"), "a", NONCE_B)
    connect = connect_frame(dialling.connect())
    monkeypatch.setattr(handshake, "FEATURES", ("compression",))

    partner, connected = Answering(identity("a"), NONCE_A, None).connect(connect)

    assert partner.features == {"compression", "telepathy"}
    assert dialling.connected(connected_frame(connected))[0].features == {"compression"}


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"mesh": "other"}, "wrong-mesh"),
        ({"node": "c"}, "wrong-node"),
        ({"node": "x"}, "unknown-node"),
        ({"incarnation": "0" * 16}, "bad-proof"),
        ({"nonce": "c" * NONCE_CHARACTERS}, "bad-proof"),
        ({"proof": None}, "bad-proof"),
        ({"format": str(FORMAT + 1)}, "future-format"),
    ],
)
def test_an_answer_with_one_header_wrong_is_refused(headers: dict[str, str | None], code: str) -> None:
    dialling = Dialling(identity("b"), "a", NONCE_B)
    _, connected = Answering(identity("a"), NONCE_A, None).connect(connect_frame(dialling.connect()))

    with pytest.raises(MeshError) as refused:
        dialling.connected(changed(connected_frame(connected), **headers))

    assert refused.value.code == code


def test_a_replayed_login_opens_nothing() -> None:
    dialling = Dialling(identity("b"), "a", NONCE_B)
    connect = dialling.connect()
    _, connected = Answering(identity("a"), NONCE_A, None).connect(connect_frame(connect))
    _, subscribe = dialling.connected(connected_frame(connected))

    later = Answering(identity("a"), "c" * NONCE_CHARACTERS, None)
    later.connect(connect_frame(connect))
    with pytest.raises(MeshError) as refused:
        later.subscribe(subscribe_frame(subscribe))

    assert refused.value.code == "bad-proof"


def test_a_proof_is_not_good_for_another_step() -> None:
    """An answering node cannot be made to sign what a dialling node would have to."""
    dialling = Dialling(identity("b"), "a", NONCE_B)
    answering = Answering(identity("a"), NONCE_A, None)
    _, connected = answering.connect(connect_frame(dialling.connect()))
    _, subscribe = dialling.connected(connected_frame(connected))
    reflected = changed(subscribe_frame(subscribe), proof=connected_frame(connected).head.headers["proof"])

    with pytest.raises(MeshError):
        answering.subscribe(reflected)


def test_a_link_subscribes_to_the_journal_and_nothing_else() -> None:
    dialling = Dialling(identity("b"), "a", NONCE_B)
    answering = Answering(identity("a"), NONCE_A, None)
    _, connected = answering.connect(connect_frame(dialling.connect()))
    _, subscribe = dialling.connected(connected_frame(connected))

    with pytest.raises(MeshError, match="nothing else"):
        answering.subscribe(changed(subscribe_frame(subscribe), destination="/queue/jobs"))


def test_the_secret_never_crosses_the_wire() -> None:
    dialling = Dialling(identity("b"), "a", NONCE_B)
    connect = dialling.connect()
    _, connected = Answering(identity("a"), NONCE_A, None).connect(connect_frame(connect))
    _, subscribe = dialling.connected(connected_frame(connected))

    assert SECRET.encode() not in connect + connected + subscribe


def test_without_a_secret_a_certificate_must_name_the_node() -> None:
    a, b = identity("a", secret=None), identity("b", secret=None)

    meet(b, a, certificate="b")

    assert code_of(b, a, certificate=None) == "no-proof"
    assert code_of(b, a, certificate="c") == "wrong-certificate"
    meet(b, a, certificate="b.example b")
    assert code_of(b, a, certificate="b.example c") == "wrong-certificate"
    assert code_of(b, a, certificate="") == "wrong-certificate"


def test_fields_that_join_to_the_same_text_have_different_proofs() -> None:
    proof = make_proof(SECRET, DIAL, ("ab", "c"))

    assert is_proof(proof, SECRET, DIAL, ("ab", "c"))
    assert not is_proof(proof, SECRET, DIAL, ("a", "bc"))
    assert not is_proof(proof, SECRET, "answer", ("ab", "c"))
