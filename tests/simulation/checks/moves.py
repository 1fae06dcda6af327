"""Clients that move: messages that are sent again, and durable subscriptions that are taken up at another node.

I5   what is sent again with its dedup id is in the log once; twice only if neither node can have known of the other's
I6   a durable subscription is given everything, at least once; what its client has the receipt of an ACK of is not
     given again by the same node, nor by another one after a moment as long as there is no fault
"""

from collections.abc import Collection

from qmq.model.dots import Dot
from qmq.storage.format.batch import batch_records
from qmq.storage.format.record import RecordKind
from tests.simulation.cluster import Member
from tests.simulation.evidence import AllowedLosses, Rows, batches_of
from tests.simulation.ledger import Ledger
from tests.simulation.workloads.names import INSISTED, INSISTED_QUEUE


def twins(rows: Rows) -> dict[str, list[Dot]]:
    """Messages that stand in a log more than once, and where."""
    found: dict[str, list[Dot]] = {}
    for dot, message_id in rows[INSISTED]:
        found.setdefault(message_id, []).append(dot)
    return {message_id: dots for message_id, dots in found.items() if len(dots) > 1}


def appended_without_a_fault(rows: Rows) -> list[str]:
    """I5 for a mesh in which nothing went wrong."""
    return [
        f"I5 again: {message_id} is {dots}, although nothing went wrong" for message_id, dots in twins(rows).items()
    ]


def appended_knowingly(member: Member, rows: Rows) -> list[str]:
    """I5: `member`, whose journal has all that it ever had, took no message that it had already."""
    order = [
        Dot(head.origin, record.sequence)
        for head, batch in batches_of(member)
        for record in batch_records(batch)
        if record.kind == RecordKind.PUBLISH and record.destination == INSISTED
    ]
    places = {dot: place for place, dot in enumerate(order)}
    return [
        f"I5 knowingly: {member.name} took {message_id} as {own} and had it as {other}"
        for message_id, dots in twins(rows).items()
        for own in dots
        for other in dots
        if own.origin.node == member.name and other != own and places.get(other, len(order)) < places.get(own, 0)
    ]


def lost_when_insisted(name: str, rows: Rows, ledger: Ledger, allowed_losses: AllowedLosses) -> list[str]:
    """I1 for what was sent again and again."""
    there = {message_id for _, message_id in rows[INSISTED]}
    return [
        f"I1 log: {message.id}, receipted by {message.receipted_by}, is not in the log of {name}"
        for message in ledger.receipted
        if message.destination == INSISTED and message.id not in there and message.id not in allowed_losses.ids
    ]


def unreceipted(ledger: Ledger) -> list[str]:
    """What insisting clients still insist on."""
    return [
        f"{message.id} is not receipted yet"
        for message in ledger.sent.values()
        if message.destination in (INSISTED, INSISTED_QUEUE) and message.receipted_by is None
    ]


def places_against(rows: Rows, ledger: Ledger, allowed_losses: AllowedLosses) -> list[str]:
    """I6: every durable subscription was given all that the log of its fanout holds."""
    return [
        f"I6 lost: no client that read {place.destination} by name was ever given {dot} ({message_id})"
        for place in ledger.places
        for dot, message_id in rows[place.destination]
        if message_id not in place.given and dot not in allowed_losses.dots
    ]


def given_again_where_acknowledged(ledger: Ledger, forgetful: Collection[str]) -> list[str]:
    """I6: a node remembers the ACKs that it receipted; except those in `forgetful`, which lost their disks."""
    return [
        f"I6 same node: {node} gave {message_id} again after it had receipted the ACK"
        for place in ledger.places
        for node, message_id in place.again_at_same_node
        if node not in forgetful
    ]


def given_again_without_a_fault(ledger: Ledger) -> list[str]:
    """I6 for a mesh in which nothing went wrong: a moment after its receipt every node knows of an ACK."""
    return [f"I6 late: {text}" for place in ledger.places for text in place.again_after_a_moment]
