"""What follows from a decision of `elections`, as values. The caller carries them out in their order."""

from collections.abc import Mapping
from typing import NamedTuple

from qmq.broker.takeover.leases import Beat, Bid, Term
from qmq.model.dots import Dot, Vector


class SendHeartbeat(NamedTuple):
    peer: str
    beat: Beat


class BeginCampaign(NamedTuple):
    """The requests for votes follow."""

    bid: Bid


class RequestVote(NamedTuple):
    peer: str
    bid: Bid


class RequestRelease(NamedTuple):
    """`server` is requested to return the messages of this node, which it serves in term `number`."""

    server: str
    number: int


class RecordVote(NamedTuple):
    """The candidate gets the vote once it is durable; a vote for this node counts then."""

    bid: Bid


class RecordTerm(NamedTuple):
    """A majority has voted for this node."""

    owner: str
    term: Term


class BeginSync(NamedTuple):
    """`needs` and `lent`: see `TakeoverSync.begin`."""

    owner: str
    number: int
    needs: Vector
    lent: Mapping[str, list[Dot]]


class ContinueService(NamedTuple):
    """This node serves `owner` without a break, in a new term from now on."""

    owner: str


class EndSync(NamedTuple):
    """The term of the present sync of `owner` is over."""

    owner: str


class HandOff(NamedTuple):
    """`server` serves `owner`. Without a `number` it does so in no known term, and gets no report."""

    owner: str
    server: str
    number: int


class ReturnMessages(NamedTuple):
    """Hand off an owner to itself, and confirm it for the requested term once all that was settled here is durable."""

    hand_off: HandOff
    number: int
    was_served: bool


class RaiseCondition(NamedTuple):
    code: str
    message: str


class ClearCondition(NamedTuple):
    code: str
    message: str


class ReportEvent(NamedTuple):
    code: str
    message: str


class SchedulePoll(NamedTuple):
    """Something may be due now."""


ElectionEffect = (
    SendHeartbeat
    | BeginCampaign
    | RequestVote
    | RequestRelease
    | RecordVote
    | RecordTerm
    | BeginSync
    | ContinueService
    | EndSync
    | HandOff
    | ReturnMessages
    | RaiseCondition
    | ClearCondition
    | ReportEvent
    | SchedulePoll
)
