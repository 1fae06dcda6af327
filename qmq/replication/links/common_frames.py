"""Frames that either end of a link may send: replies to sessions of the other node, peer requests and responses,
membership, and frames about terms.

Delivery is not promised: frames in flight are lost when a link ends. The next link sends the membership again.
"""

from qmq.broker.consumers.outcome import Outcome
from qmq.model.dots import Origin
from qmq.replication.links.host import Host
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.protocol.frames import Both, MembershipFrame, Replies, RequestFrame, ResponseFrame


def take_common(host: Host, peer: Origin, frame: Both, way: LinkOutbox, out: Outcome) -> None:
    """Apply one frame of `peer`; `way` is the outbox to it."""
    match frame:
        case Replies(messages):
            for message in messages:
                host.broker.replies.from_peer(message, out)
        case RequestFrame(number, request):
            host.follower.request_received(peer, number, request, way)
        case ResponseFrame(number, body):
            host.follower.response_received(peer, number, body)
        case MembershipFrame(standing):
            host.follower.membership_received(peer.node, standing)
        case _:
            host.terms.terms_came(peer, frame, way, out)
