"""How two nodes meet: CONNECT, CONNECTED, SUBSCRIBE, and what each side checks before it believes the other.

    pulling side                                     serving side
    CONNECT    own name, name meant, nonce F, proof ──▶  mesh, names, format, proof checked
       ◀── CONNECTED  own name, nonce S, proof over F, S
    SUBSCRIBE  proof over S, F                       ──▶  only now does the link exist

A holder of the mesh's secret can make the three proofs; an eavesdropper learns nothing from them, and the secret itself
never crosses the wire. The second proof of the pulling side is over a nonce that the serving side has just drawn, so
that a CONNECT that was overheard opens nothing. With TLS there is no secret: certificates prove the names, and the
proofs are empty. Everything is checked in an order that reports the most useful thing to the operator first: a
wrong mesh id before a bad proof. Pure: nonces are drawn by the caller.

A node whose peer cannot dial it dials the peer, and says so in a CONNECT with `turn` (`reverse_dial`). From there on
the two meet as above, on that connection: the side that was dialled is the pulling side, and sends the first CONNECT.
"""

import hmac
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from qmq.errors import MeshError
from qmq.model.dots import Origin
from qmq.replication.protocol.frame_table import JOURNAL
from qmq.wire.stomp.frames import Frame
from qmq.wire.stomp.writer import encode_frame

FORMAT: Final = 1
"""Version of everything in `frames`. Raised when a node of the present one could misread it; a higher one is
refused."""

SHARED_BODIES: Final = "shared-bodies"
"""The feature of a node that reads batches with shared bodies (`storage.format.shared_bodies`)."""

FEATURES: Final[tuple[str, ...]] = (SHARED_BODIES,)
"""What a node may use only with peers that name it too; unknown names are ignored. Everything in `FORMAT` needs
none."""

NONCE_CHARACTERS: Final = 32
"""128 bits in hex."""

RETIRED_NODE: Final = "retired-node"
"""Code of the refusal of a node that was retired."""

TAKEOVER_DIFFERS: Final = "takeover-differs"
"""Code of the refusal of a node with another `takeover_after_seconds`, or with takeover off where it is on here."""

DIAL = "dial"
ANSWER = "answer"
SUBSCRIBE = "subscribe"
TURN = "turn"
"""Replaces DIAL in a CONNECT with a reverse dial; neither proof is valid as the other."""

_HEX: Final = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """What one node says of itself, and what it knows of the others."""

    mesh: str
    peers_version: int
    origin: Origin
    members: frozenset[str]
    retired: frozenset[str] = frozenset()
    secret: str | None
    beat_ms: int
    takeover_ms: int = 0
    """Silence after which another node may take over; 0: takeover is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """What the other side of a link has said of itself, proven."""

    origin: Origin
    peers_version: int
    features: frozenset[str]
    beat_ms: int
    """Every how many ms it beats, and wants us to."""


class Dialling:
    """The follower's half. `to` is the node we mean to reach, `nonce` is used once."""

    def __init__(self, identity: PeerIdentity, to: str, nonce: str) -> None:
        self._identity = identity
        self._to = to
        self._nonce = nonce

    def connect(self) -> bytes:
        """The CONNECT frame."""
        return _connect(self._identity, self._to, self._nonce, DIAL, [])

    def connected(self, frame: Frame) -> tuple[Partner, bytes]:
        """Believe CONNECTED, or raise MeshError; returns the peer and the SUBSCRIBE frame."""
        headers = frame.head.headers
        partner = _check_partner(headers, self._identity)
        if partner.origin.node != self._to:
            raise MeshError("wrong-node", f"dialled {self._to}, and {partner.origin.node} answered")
        mine = self._identity
        theirs = headers.get("nonce", "")
        parts = (mine.mesh, str(mine.origin), str(partner.origin), self._nonce, theirs)
        if not is_proof(headers.get("proof", ""), mine.secret, ANSWER, parts):
            raise MeshError("bad-proof", f"{self._to} does not hold this mesh's secret")
        _check_takeover(headers, self._to, mine)
        proof = make_proof(mine.secret, SUBSCRIBE, parts)
        return partner, encode_frame(
            "SUBSCRIBE", [("id", "0"), ("destination", JOURNAL), ("ack", "client"), ("proof", proof)]
        )


class Answering:
    """The serving node's half.

    `certificate_names` gives the names in the certificate of the other side, one of which must be the node's, as where
    this node dials; None means that this mesh has no TLS. It is asked when CONNECT came, because a certificate is shown
    after a connection was accepted.
    Without TLS and without a secret every connection is refused.
    """

    def __init__(
        self, identity: PeerIdentity, nonce: str, certificate_names: Callable[[], Collection[str]] | None
    ) -> None:
        self._identity = identity
        self._nonce = nonce
        self._certificate_names = certificate_names
        self._parts: tuple[str, ...] = ()
        self.claimed = ""
        """The name the other side gave, for reports; not proven."""

    def turned(self, frame: Frame) -> str:
        """The node that asks with this CONNECT to be followed over its connection; "" when it is any other CONNECT.

        Raises MeshError. Not proven: a replay of an overheard CONNECT gets a CONNECT back, and nothing more.
        """
        if "turn" not in frame.head.headers:
            return ""
        return self._check(frame, TURN).origin.node

    def connect(self, frame: Frame) -> tuple[Partner, bytes]:
        """Believe CONNECT for now, or raise MeshError; returns the peer and the CONNECTED frame."""
        mine = self._identity
        partner = self._check(frame, DIAL)
        theirs = frame.head.headers["nonce"]
        self._parts = (mine.mesh, str(partner.origin), str(mine.origin), theirs, self._nonce)
        return partner, encode_frame(
            "CONNECTED",
            [
                ("version", "1.2"),
                ("heart-beat", f"{mine.beat_ms},{mine.beat_ms}"),
                *_self_description(mine),
                ("nonce", self._nonce),
                ("proof", make_proof(mine.secret, ANSWER, self._parts)),
            ],
        )

    def _check(self, frame: Frame, purpose: str) -> Partner:
        headers = frame.head.headers
        mine = self._identity
        if headers.get("node", "") in mine.retired:
            self.claimed = headers["node"]
        partner = _check_partner(headers, mine)
        node = self.claimed = partner.origin.node
        if node == mine.origin.node:
            raise MeshError("own-name", f"another node calls itself {node}, which is this node's name")
        to = headers.get("to", "")
        if to != mine.origin.node:
            raise MeshError("wrong-node", f"{node} meant to reach {to[:40]!r}; this is {mine.origin.node}")
        if mine.secret is None and self._certificate_names is None:
            raise MeshError("no-proof", "this mesh has no secret, so a link needs TLS with a certificate")
        if self._certificate_names is not None:
            names = self._certificate_names()
            if node not in names:
                named = ", ".join(sorted(map(ascii, names))) or "no DNS name"
                raise MeshError("wrong-certificate", f"the certificate of {node} names {named[:200]}, not the node")
        theirs = headers.get("nonce", "")
        if len(theirs) != NONCE_CHARACTERS:
            raise MeshError("bad-proof", f"a nonce has {NONCE_CHARACTERS} characters")
        if not is_proof(headers.get("proof", ""), mine.secret, purpose, (mine.mesh, str(partner.origin), to, theirs)):
            raise MeshError("bad-proof", f"the node that calls itself {node} does not hold this mesh's secret")
        _check_takeover(headers, node, mine)
        return partner

    def subscribe(self, frame: Frame) -> None:
        """Believe for good, or raise MeshError."""
        headers = frame.head.headers
        if headers.get("destination") != JOURNAL:
            raise MeshError("bad-frame", f"a link subscribes to {JOURNAL} and nothing else")
        if not is_proof(headers.get("proof", ""), self._identity.secret, SUBSCRIBE, self._parts):
            raise MeshError("bad-proof", f"the node that calls itself {self.claimed} replayed an old login")


def turn(identity: PeerIdentity, to: str, nonce: str) -> bytes:
    """The CONNECT that asks `to` to be the follower on a connection that we have dialled. `nonce` is used once."""
    return _connect(identity, to, nonce, TURN, [("turn", "1")])


def _connect(mine: PeerIdentity, to: str, nonce: str, purpose: str, more: list[tuple[str, str]]) -> bytes:
    return encode_frame(
        "CONNECT",
        [
            ("accept-version", "1.2"),
            ("host", mine.mesh),
            ("heart-beat", f"{mine.beat_ms},{mine.beat_ms}"),
            *_self_description(mine),
            ("to", to),
            ("nonce", nonce),
            ("proof", make_proof(mine.secret, purpose, (mine.mesh, str(mine.origin), to, nonce))),
            *more,
        ],
    )


def _self_description(mine: PeerIdentity) -> list[tuple[str, str]]:
    return [
        ("mesh", mine.mesh),
        ("peers-version", str(mine.peers_version)),
        ("node", mine.origin.node),
        ("incarnation", f"{mine.origin.incarnation:016x}"),
        ("format", str(FORMAT)),
        ("takeover", str(mine.takeover_ms)),
        ("features", ",".join(FEATURES)),
    ]


def _check_partner(headers: dict[str, str], mine: PeerIdentity) -> Partner:
    mesh = headers.get("mesh")
    if mesh is None:
        raise MeshError("not-a-node", "this address is for the nodes of a mesh; clients have another one")
    if mesh != mine.mesh:
        raise MeshError("wrong-mesh", f"a node of mesh {mesh[:40]!r} on a link of mesh {mine.mesh!r}")
    node = headers.get("node", "")
    if node in mine.retired:
        raise MeshError(RETIRED_NODE, f"{node} was retired from this mesh; its name and its disk must not come back")
    if node not in mine.members:
        raise MeshError("unknown-node", f"{node[:40]!r} is not in this node's peers file")
    if _number(headers, "format") > FORMAT:
        raise MeshError(
            "future-format", f"{node} speaks format {headers['format']} on links, this node up to {FORMAT}: upgrade it"
        )
    incarnation = headers.get("incarnation", "")
    if len(incarnation) != 16 or not _HEX.issuperset(incarnation):
        raise MeshError("bad-frame", f"{node} gave no incarnation of 16 hex digits")
    beat = headers.get("heart-beat", "").partition(",")[0]
    if not beat.isascii() or not beat.isdigit() or not 1 <= len(beat) <= 9 or int(beat) == 0:
        raise MeshError("bad-frame", f"{node} sends no heart-beats; a link needs them both ways")
    features = frozenset(headers.get("features", "").split(",")) - {""}
    return Partner(
        origin=Origin(node, int(incarnation, 16)),
        peers_version=_number(headers, "peers-version"),
        features=features,
        beat_ms=int(beat),
    )


def _check_takeover(headers: dict[str, str], node: str, mine: PeerIdentity) -> None:
    theirs = _number(headers, "takeover")
    if theirs != mine.takeover_ms:
        raise MeshError(
            TAKEOVER_DIFFERS,
            f"{node} has {_takeover(theirs)} and {mine.origin.node} {_takeover(mine.takeover_ms)}, must be the same",
        )


def _takeover(after_ms: int) -> str:
    return f"takeover_after_seconds = {after_ms / 1000:g}" if after_ms else "takeover = false"


def _number(headers: dict[str, str], name: str) -> int:
    text = headers.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > 16:
        raise MeshError("bad-frame", f"{name} is not a number")
    return int(text)


def make_proof(secret: str | None, purpose: str, fields: tuple[str, ...]) -> str:
    """Hex HMAC-SHA256 over `purpose` and `fields`; empty when there is no secret.

    Every part is preceded by its length, so that no two lists of fields have the same bytes.
    """
    if secret is None:
        return ""
    message = bytearray()
    for part in (purpose, *fields):
        data = part.encode()
        message += len(data).to_bytes(4, "big") + data
    return hmac.new(secret.encode(), bytes(message), "sha256").hexdigest()


def is_proof(given: str, secret: str | None, purpose: str, fields: tuple[str, ...]) -> bool:
    """Whether `given` is that proof. The time taken does not depend on how much of it was right."""
    return hmac.compare_digest(given.encode(), make_proof(secret, purpose, fields).encode())
