"""Frames: what travels over a link once both sides are proven. `frame_table` says how each is encoded and checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from qmq.broker.consumers.subscription import Asks
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.broker.takeover.leases import Beat, Bid
from qmq.model.dots import Dot, Origin, Vector
from qmq.model.members import Standing

# Both ways


@dataclass(frozen=True, slots=True)
class Replies:
    """Messages for temporary queues of the other side's sessions."""

    messages: list[Message]


class PeerRequest(NamedTuple):
    """What one node asks of another. The kind selects the part that responds (`qmq.node.peer_requests`)."""

    kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """A request to the other side's node. `number` is the requester's."""

    number: int
    request: PeerRequest


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """The response to the request with that number. It may come late, over another link, or never."""

    number: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Reach:
    """The nodes that the sender has a link with, except the other side: it can relay messages to them.

    `number` grows with each frame. Frames may arrive over two connections; an older one is ignored.
    """

    number: int
    origins: frozenset[Origin]


@dataclass(frozen=True, slots=True)
class InterestPart:
    """Interest of `origin` in its `version`: the difference from version `base`, or a part of the whole.

    `base` is NEVER in a part of the whole. Parts with one `whole` belong together; they are numbered from 0.
    """

    origin: Origin
    base: int
    version: int
    whole: int
    part: int
    is_last: bool
    patterns: dict[str, bool]


@dataclass(frozen=True, slots=True)
class Heard:
    """(origin, version of its interest in force at the sender and where it relays it). NEVER asks for the whole."""

    versions: list[tuple[Origin, int]]


@dataclass(frozen=True, slots=True)
class Passed:
    """Topic messages or replies of one origin for the node `target`: the other side, or a node with a link to it."""

    target: str
    messages: list[Message]


# Members, and which node serves whose queue messages (`qmq.broker.takeover.leases`), both ways. Heartbeats go over
# every link between two nodes, so what follows one on a link is as recent as the echo in it; the others over one link.


@dataclass(frozen=True, slots=True)
class MembershipFrame:
    """The standing of the node that sends it."""

    standing: Standing


@dataclass(frozen=True, slots=True)
class HeartbeatFrame:
    """A heartbeat."""

    beat: Beat


@dataclass(frozen=True, slots=True)
class Ask:
    """The sender is the candidate, and asks for a vote."""

    bid: Bid


@dataclass(frozen=True, slots=True)
class Vote:
    """The sender has voted for the bid in that term; `has` is what it has durably."""

    owner: str
    number: int
    has: Vector


@dataclass(frozen=True, slots=True)
class Release:
    """Without `has`: the owner asks the node that serves it in that term to stop.

    With `has`: that node has stopped, and its records up to `has` contain the settles of its consumers.
    `lent`: node → messages that its consumers have.
    """

    owner: str
    number: int
    has: Vector | None = None
    lent: Mapping[str, list[Dot]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holds:
    """To the server of a new term: these messages of `owner` are with consumers of the sender."""

    owner: str
    number: int
    dots: list[Dot]


# From the pulling side


@dataclass(frozen=True, slots=True)
class Ack:
    """What the pulling side has. Vectors hold what changed since its last Ack; the first one of a link holds all.

    `frames` is the number of the last Batches frame it has taken. `direct` names the origins it follows at their own
    node and so need not be sent here; None when that has not changed.
    """

    frames: int
    received: Vector
    durable: Vector
    direct: tuple[Origin, ...] | None
    sent_us: int = field(default=0, compare=False)
    """The pulling side's clock."""


@dataclass(frozen=True, slots=True)
class Credit:
    """(queue and class of consumers, how many messages may be lent for it in all over this link).

    -1: none any more. The other side forgets what it has lent and answers with Forgotten. Less than that is -2 minus
    the limit, and a question besides; the answer is `Waiting` or a message.
    """

    offers: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Queue → whether messages wait here for plain consumers of the pulling side, which has asked."""

    queues: dict[str, bool]


@dataclass(frozen=True, slots=True)
class Settled:
    """Lent messages that a consumer has settled. The settle of a durable message is durable."""

    dots: list[Dot]


@dataclass(frozen=True, slots=True)
class Returned:
    """Lent messages that return, in their order: the reason, and what their consumer asked for in that case."""

    returns: list[tuple[Dot, Back, Asks | None]]


@dataclass(frozen=True, slots=True)
class Held:
    """Once per link, before any Credit: the lent messages that consumers of the pulling side still have.

    All else that was lent to it is settled in its records up to `through` (of its own origins), or lost.
    """

    keep: list[Dot]
    through: Vector


# From the serving side


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the serving node has durably when the link begins; having all of it is being caught up."""

    vector: Vector
    sent_us: int = field(default=0, compare=False)
    """The serving node's clock."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Ranges that retention has dropped here: (origin, last sequence of the range)."""

    gaps: list[tuple[Origin, int]]


@dataclass(frozen=True, slots=True)
class Hole:
    """Records of these origins are damaged here: the pulling side must get them from other nodes."""

    origins: tuple[Origin, ...]


@dataclass(frozen=True, slots=True)
class Batches:
    """Whole journal batches, one after the other. Frames are numbered from 1 over the life of the link."""

    number: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Topics:
    """Topic messages that the serving node accepted and the pulling side wants."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class Lend:
    """Queue messages that the serving node serves, lent against the pulling side's credit.

    `terms`: for owners among them that it does not serve in term 0, the term. An owner without one that is not the
    serving node is served by it no more: the pulling side lets such messages go.
    """

    messages: list[Message]
    sent_us: int = field(default=0, compare=False)
    """The serving node's clock."""
    terms: Mapping[str, int] = field(default_factory=dict)
    sender: str = field(default="", compare=False)
    """The serving node; messages of others name their node."""


@dataclass(frozen=True, slots=True)
class Retained:
    """Last values of topics, and tombstones of removed ones, of all origins."""

    values: list[Message]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Withdrawn offers that are forgotten: nothing that was lent against them is in transit."""

    names: list[str]


Terms = HeartbeatFrame | Ask | Vote | Release | Holds
Both = Replies | RequestFrame | ResponseFrame | MembershipFrame | Terms
Paths = Reach | InterestPart | Heard | Passed
"""What links report of interest, and how messages get there (`routes`)."""

Follows = Ack | Credit | Settled | Returned | Held | Both
Serves = Welcome | Gap | Hole | Batches | Topics | Lend | Forgotten | Waiting | Retained | Both
MeshFrame = Follows | Serves | Paths
