"""Queues that were declared and deleted, and queues that end by themselves.

L1   a message confirmed for a declared queue is delivered in the end, or a deletion covers it: its job had the message,
     or its tombstone is later than the message and than the declaration under which the message was accepted
L2   no message older than the last deletion of a declared queue is delivered in the end
L3   a queue is declared in the end only if an operator declared it when that version was decided
L4   queues that end with a connection, with their last consumer, or when unused do not exist in the end, nor do their
     messages
P3   a node refuses users that it does not have, and no others; the client itself reports violations
"""

from collections.abc import Iterable

from qmq.definitions.definition import Key, Version
from qmq.definitions.table import DefinitionTable
from qmq.model.dots import Dot
from qmq.node.node import Node
from tests.simulation.cluster import Member
from tests.simulation.ledger import Ledger, Sent
from tests.simulation.operations import DECLARED, VISITED, Job, Operations
from tests.simulation.workloads.names import MADE_UP, OWNED

CLOCK_SECONDS = 0.5
"""How exactly nodes know how far their clocks are apart."""


def may_have_taken(operations: Operations, job: Job, message: Sent, dot: Dot, *, are_clocks_right: bool) -> bool:
    """L1: whether this deletion may have settled a message of its queue."""
    if job.had.get(dot.origin, 0) < dot.sequence:
        return False
    if job.mark is None:
        return True
    under = operations.under.get(message.id)
    is_older = not are_clocks_right or message.at < operations.written[job.mark] + CLOCK_SECONDS
    return is_older and (under is None or job.mark > under)


def left_over(ledger: Ledger, model: DefinitionTable, members: Iterable[Member] = ()) -> list[str]:
    """L2. Of a retired node, its adopter may not know the clock: its messages may be as late as its retirement."""
    nodes = {member.name: member.node for member in members if member.node is not None}
    wrongs: list[str] = []
    for queue in DECLARED:
        last = model.by_key.get(Key("queue", queue))
        if last is None or last.text is not None:
            continue
        deleted_at = ledger.operations.written.get(last.version, 0.0)
        wrongs += [
            f"L2 left: {one.id} was given of {queue}, which was deleted at {deleted_at:.3f} by {last.version}"
            for one in ledger.operations.given
            if one.queue == queue
            and one.is_final
            and _is_older(ledger.sent[one.id], deleted_at)
            and not _is_undated(nodes.get(one.dot.origin.node), ledger.sent[one.id], last.version)
        ]
    return wrongs


def _is_undated(adopter: Node | None, message: Sent, deletion: Version) -> bool:
    """Whether this node adopted the message, and had heard of the retirement of its node only after the deletion."""
    if adopter is None or message.receipted_by is None:
        return False
    retirement = adopter.membership.retired.get(message.receipted_by.node)
    apart_us = adopter.engine.broker.clocks.apart_us(deletion.origin.node) or 0
    return retirement is not None and retirement.heard_us > deletion.written_us + apart_us


def _is_older(message: Sent, deleted_at: float) -> bool:
    """Certainly: its node had accepted it by then."""
    return message.receipted_by is not None and message.receipted_at + CLOCK_SECONDS < deleted_at


def resurrected(operations: Operations, model: DefinitionTable) -> list[str]:
    """L3."""
    wrongs: list[str] = []
    for queue in DECLARED:
        last = model.get(Key("queue", queue))
        at = None if last is None else operations.written.get(last.version)
        if at is not None and not any(
            one.queue == queue and one.began <= at <= one.ended for one in operations.declaring
        ):
            wrongs.append(f"L3 resurrected: {queue} is declared since {at:.3f}, and no operator did that")
    return wrongs


def left_behind(members: Iterable[Member]) -> list[str]:
    """L4."""
    return [
        f"L4 left behind: {member.name} has {one.key.name}: {one.text}"
        for member in members
        if member.node is not None
        for one in member.node.settings_parts.definitions.table.present()
        if one.key.kind == "queue" and one.key.name.startswith((VISITED, OWNED, MADE_UP))
    ]
