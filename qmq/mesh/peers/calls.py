"""Calls: what one node asks of another, each a class that says what travels, and what comes back.

A call is declared once, near what it asks:

    class PingCall(PeerCall[PingReply], frozen=True):
        kind: ClassVar = "ping"
        text: Text

Its fields are the request, checked with their bounds as msgspec reads them; the type in brackets is the reply, any type
that msgspec knows. Then one line in the table of `qmq.node.peer_requests` says which part answers it. To ask:

    found, missing = await peer_rpc.ask(PingCall("x"))       replies of peers by node, names of the others
    found, missing = await peer_rpc.ask_all(PingCall("x"))   the same, and that of this node first
    reply = await peer_rpc.ask_one("b", PingCall("x"))       None: no reply

A reply that is not valid counts as none, and a request that is not valid gets none; both are logged by `rpc`, and
neither needs a `try` elsewhere. What types and bounds cannot say is in `check`, or in `__post_init__` of a struct.

On the wire a call is JSON, or msgpack, of one kind. Several calls of one kind differ by a tag (`tag_field`, `tag`),
or, as a `NamedCall`, by the object around them. Unknown fields are ignored, so that a later version can add
some, and it gives each a default, so that it can read an earlier one.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from functools import cache, reduce
from inspect import isawaitable
from operator import or_
from typing import Annotated, Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct, defstruct

from qmq.errors import CorruptLog, MeshError, Refused
from qmq.model.dots import Origin, Vector
from qmq.replication.protocol.frames import PeerRequest

R = TypeVar("R")
Parts = TypeVar("Parts")
"""What those that answer are found in."""

INVALID: Final = (ValueError, TypeError, RecursionError, MeshError, CorruptLog)
"""What reading a call or a reply raises, whatever is wrong with it."""

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Node = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,32}\Z")]
Text = Annotated[str, Meta(max_length=1 << 16)]
"""A name, an id, a reason: no field of a call has a longer text."""
Whole = Annotated[int, Meta(ge=-(1 << 63) + 1, le=(1 << 63) - 1)]
Row = dict[str, Any]
Facts = dict[str, Any]
"""What a node says, by name, for clients as it is: a later version may say more."""


def need(facts: Any, **types: type) -> None:
    """Raises ValueError unless `facts` is an object with these facts, each of its type."""
    if type(facts) is not dict:
        raise ValueError("an object was expected")
    for name, wanted in types.items():
        if type(facts.get(name)) is not wanted:
            raise ValueError(f"{name} is no {wanted.__name__}")


def check_incarnation(incarnation: int) -> None:
    """Raises ValueError: no bound of msgspec has 64 bits."""
    if not 0 <= incarnation < 1 << 64:
        raise ValueError("an incarnation has 64 bits")


class OriginSequence(Struct, frozen=True, array_like=True):
    """One entry of a vector."""

    node: Node
    incarnation: int
    sequence: Count

    def __post_init__(self) -> None:
        check_incarnation(self.incarnation)

    def pair(self) -> tuple[Origin, int]:
        return Origin(self.node, self.incarnation), self.sequence


def pack_vector(vector: Vector) -> list[OriginSequence]:
    return [OriginSequence(*origin, last) for origin, last in vector.items()]


def vector_of(entries: Iterable[OriginSequence]) -> Vector:
    return dict(map(OriginSequence.pair, entries))


class PeerCall(Struct, Generic[R], frozen=True):
    """See the module's opening."""

    kind: ClassVar[str]
    format: ClassVar[Any] = msgspec.json

    def request(self) -> PeerRequest:
        """What travels."""
        return PeerRequest(self.kind, self.format.encode(self))

    def check(self, reply: R) -> None:
        """Raises ValueError when this cannot be the reply to this call."""

    @classmethod
    def by(cls, answer: "Callable[[Parts, Self], R | Awaitable[R]]") -> "Answer[Parts]":
        """A line of a table: `answer` gives the reply of this node to such a call, or raises Refused."""
        return Answer(cls, answer)

    @classmethod
    def encode_reply(cls, reply: R) -> bytes:
        return cls.format.encode(reply)  # type: ignore[no-any-return]

    @classmethod
    def decode_reply(cls, data: bytes) -> R:
        """The inverse. Raises one of INVALID."""
        return _reply_decoder(cls).decode(data)  # type: ignore[no-any-return]


class NamedCall(PeerCall[R], frozen=True):
    """One of the calls of a kind, in JSON `{NAMED_BY: NAME, "wanted": CALL}`."""

    named_by: ClassVar[str]
    name: ClassVar[str]

    def request(self) -> PeerRequest:
        return PeerRequest(self.kind, msgspec.json.encode({self.named_by: self.name, "wanted": self}))


class AdminQuery(NamedCall[R], frozen=True):
    """A short administrative request, which is done at once. It may be done twice if a link ends."""

    kind: ClassVar = "admin-query"
    named_by: ClassVar = "query"


class Replies(NamedTuple, Generic[R]):
    """The reply of each node that gave one, by its name, and the names of the others."""

    by_node: dict[str, R]
    missing: list[str]


class Answer(NamedTuple, Generic[Parts]):
    """A call, and what answers it. `PeerCall.by` makes one, and so it gives the reply of that call."""

    call: type[PeerCall[Any]]
    give: Callable[[Parts, Any], Any]


class CallTable(Generic[Parts]):
    """All calls of a node, or of one protocol, and what answers each, found in `Parts`."""

    def __init__(self, answers: Iterable[Answer[Parts]]) -> None:
        self._answers = dict(answers)
        kinds: dict[str, list[type[PeerCall[Any]]]] = defaultdict(list)
        for call in self._answers:
            kinds[call.kind].append(call)
        self.calls = tuple(self._answers)
        self.kinds = tuple(kinds)
        self._decoders = {kind: _request_decoder(tuple(calls)) for kind, calls in kinds.items()}

    def read(self, request: PeerRequest) -> PeerCall[Any]:
        """The call in a request of one of these kinds. Raises Refused."""
        try:
            found = self._decoders[request.kind].decode(request.body)
        except INVALID as error:
            raise Refused("bad-destination", f"an invalid request of the kind {request.kind}: {error}") from error
        return found if isinstance(found, PeerCall) else found.wanted

    async def answer(self, parts: Parts, call: PeerCall[R]) -> R:
        """The reply of this node. Raises Refused."""
        reply = self._answers[type(call)](parts, call)
        return (await reply) if isawaitable(reply) else reply  # type: ignore[no-any-return]


NO_CALLS: Final = CallTable[Any](())


def _request_decoder(calls: tuple[type[PeerCall[Any]], ...]) -> Any:
    """Reads each of these calls, which are of one kind."""
    types: list[Any] = [
        defstruct(one.__name__, [("wanted", one)], tag_field=one.named_by, tag=one.name)
        if issubclass(one, NamedCall)
        else one
        for one in calls
    ]
    return calls[0].format.Decoder(reduce(or_, types))


@cache
def _reply_decoder(call: type[PeerCall[Any]]) -> Any:
    (base,) = call.__orig_bases__  # type: ignore[attr-defined]
    return call.format.Decoder(*get_args(base))
