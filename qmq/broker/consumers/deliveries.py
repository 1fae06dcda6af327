"""Finding the deliveries that ACK and NACK name, among those of all sessions: tag → delivery."""

from qmq.broker.consumers.subscription import Ack, Delivery
from qmq.errors import Refused


def find_delivery(deliveries: dict[int, Delivery], session_id: int, tag: int) -> Delivery:
    """The delivery that `tag` names. Raises Refused when it is not in flight to this session."""
    delivery = deliveries.get(tag)
    if delivery is None or delivery.subscription.session != session_id:
        raise Refused("unknown-ack", f"No message with the id {tag} waits for an ACK on this connection.")
    return delivery


def find_run(deliveries: dict[int, Delivery], session_id: int, tags: list[int]) -> list[Delivery] | None:
    """The deliveries that `tags` name; None unless all are in flight to one subscription of this session whose
    ACKs settle one message each, and none is named twice."""
    first = deliveries.get(tags[0])
    if first is None:
        return None
    subscription = first.subscription
    if subscription.session != session_id or subscription.ack is not Ack.CLIENT_INDIVIDUAL:
        return None
    found: list[Delivery] = []
    for tag in tags:
        delivery = deliveries.get(tag)
        if delivery is None or delivery.subscription is not subscription:
            return None
        found.append(delivery)
    return found if len(set(tags)) == len(tags) else None
