"""Queues: confirmed messages are processed, and messages with a confirmed ACK stay settled.

I1   a consumer has processed every confirmed message at least once; a plain receipt promises two disks in a mesh of
     three nodes or more, so there the loss of one disk allows no loss of a message
I7   the node that confirmed an ACK does not deliver the message again, nor does any node as long as there is no fault
I8   no node delivers a message again whose ACK was confirmed at the level `quorum`
I26  if all nodes have the records of a message with a dedup id, no first attempt is delivered beside a retry
I25  a message that a consumer reads a second time under one `message-id` has `redelivered`
"""

from collections.abc import Collection

from tests.simulation.evidence import AllowedLosses
from tests.simulation.ledger import Ledger
from tests.simulation.operations import DECLARED, OPERATED


def lost(ledger: Ledger, allowed_losses: AllowedLosses) -> list[str]:
    """I1: what was receipted was worked on at least once. To be asked when the queues have run dry.

    Operators purge and delete some queues; of these see `operations`.
    """
    return [
        f"I1 queue: {message.id}, receipted by {message.receipted_by}, reached no consumer of {message.destination}"
        for message in ledger.receipted
        if message.destination.startswith("/queue/")
        and message.destination not in (*OPERATED, *DECLARED)
        and message.id not in ledger.consumed
        and message.id not in allowed_losses.ids
    ]


def lost_copies(ledger: Ledger, allowed_losses: AllowedLosses, elsewhere: Collection[str] = ()) -> list[str]:
    """What was receipted as being on more disks than had it and lost it, and is on none.

    `elsewhere`: what was sent more than once and stands in a log; another attempt than the lost one was receipted.
    """
    return [
        f"I1 copies: {message.id}, receipted by {message.receipted_by} for {message.copies} disks, is on no other disk"
        for message in ledger.receipted
        if message.id in allowed_losses.ids
        and message.id not in elsewhere
        and message.copies > allowed_losses.disks_of(message)
    ]


def given_again_where_settled(ledger: Ledger, forgetful: Collection[str]) -> list[str]:
    """I7: a node remembers what it receipted; except those in `forgetful`, which lost their disks."""
    return [
        f"I7 same node: {node} gave {message_id} again after it had receipted the ACK"
        for node, message_id in ledger.again_at_same_node
        if node not in forgetful
    ]


def given_again_for_good(ledger: Ledger) -> list[str]:
    """I8: ACKs that were receipted at `quorum`, where no majority lost its disks."""
    return [f"I8 quorum: {what}" for what in ledger.again_for_good]


def given_again_without_a_fault(ledger: Ledger) -> list[str]:
    """I7 for a mesh in which nothing went wrong."""
    again = ledger.again_after_edge + ledger.again_after_quorum
    return [f"I7 without a fault: given again after a receipted ACK: {again}"] if again else []


def given_as_two_records(ledger: Ledger) -> list[str]:
    """I26."""
    return [
        f"I26 twice: {message_id} was given as {sorted(records)}, and one of these says that it is a retry"
        for message_id, records in ledger.records_given.items()
        if set(records.values()) == {False, True}
    ]


def unmarked(ledger: Ledger) -> list[str]:
    """I25."""
    return [f"I25 unmarked: {what} was read before" for what in ledger.unmarked]
