"""Records, as the journals of all nodes have them.

I2   every record in a log was sent to its node by a client, no record is there twice, and bodies are unchanged
I3   the records of one incarnation on one node are a prefix of those on another, byte for byte, without a hole
I4   the messages of one publisher in one incarnation are in the order in which it sent them; a message without a
     receipt may have been in transit when its publisher closed its connection, and follows only what that sent before
"""

from collections.abc import Collection, Mapping

from qmq.model.dots import Dot, Origin, Vector
from qmq.storage.format.batch import REST
from tests.simulation.evidence import AllowedLosses, Log, Published
from tests.simulation.ledger import Ledger
from tests.simulation.operations import BURIED, OPERATED
from tests.simulation.routing import COPIED, SENDS
from tests.simulation.workloads.names import INSISTED, INSISTED_QUEUE, TUBES

MOVED = (*OPERATED, BURIED)


def holes(name: str, log: Log, vector: Vector, damaged: Collection[Dot] = ()) -> list[str]:
    """I3, inside one journal: what is kept has no hole and ends where the vector says, but for what was damaged.

    A write that went astray may have put a copy of a batch in the place of what it damaged.
    """

    def are_missing(origin: Origin, first: int, last: int) -> bool:
        return any(Dot(origin, sequence) not in damaged for sequence in range(first, last + 1))

    wrong: list[str] = []
    for origin, batches in log.items():
        if damaged:
            batches = sorted({data: (head, data) for head, data in batches}.values(), key=lambda one: one[0].first)
        for (before, _), (after, _) in zip(batches, batches[1:], strict=False):
            if after.first <= before.last or are_missing(origin, before.last + 1, after.first - 1):
                wrong.append(f"I3 hole: {name} has {origin} up to {before.last} and then from {after.first}")
        last, said = batches[-1][0].last, vector.get(origin, 0)
        if said < last or are_missing(origin, last + 1, said):
            wrong.append(f"I3 vector: {name} says {said} of {origin} and has {last}")
    return wrong


def differences(logs: Mapping[str, Log]) -> list[str]:
    """I3, between journals: where two keep the same batch it is the same to the byte.

    What stands for a range that had left all journals is each node's own (`batch.REST`).
    """
    wrong: list[str] = []
    known: dict[tuple[Origin, int], tuple[str, bytes]] = {}
    for name, log in logs.items():
        for origin, batches in log.items():
            for head, data in batches:
                if head.attributes & REST:
                    continue
                other, there = known.setdefault((origin, head.first), (name, data))
                if there != data:
                    wrong.append(f"I3 divergence: {origin} from {head.first} differs between {other} and {name}")
    return wrong


def inventions(records: Mapping[Dot, Published], ledger: Ledger, adopted: Collection[Dot] = ()) -> list[str]:
    """I2 and I4 in the logs. Of those in `adopted` only what they say is judged here; see `members`."""
    wrong: list[str] = []
    where: dict[str, Dot] = {}
    last: dict[tuple[Origin, str, float | None], int] = {}
    for dot in sorted(records):
        record = records[dot]
        sent = ledger.sent.get(record.id)
        origin = "" if sent is None else sent.destination
        is_copy = record.destination in COPIED and origin in SENDS
        # Operators had moved it, and then its node was retired.
        is_copy = is_copy or (bool(adopted) and record.destination in MOVED and origin in MOVED)
        # A job that was released or buried is a new message of the worker's node.
        is_copy = is_copy or (record.destination in TUBES and record.id in ledger.rewritten)
        if sent is None or sent.body != record.body or not (is_copy or sent.destination == record.destination):
            wrong.append(f"I2 log: {dot} holds {record.id} as no client sent it")
            continue
        # Of the latter see `moves`, and of copies `operations`.
        if dot in adopted or is_copy or record.destination in (INSISTED, INSISTED_QUEUE):
            continue
        if sent.node != dot.origin.node:
            wrong.append(f"I2 elsewhere: {dot} is {record.id}, which was sent to {sent.node}")
        if record.id in where:
            wrong.append(f"I2 twice: {record.id} is both {where[record.id]} and {dot}")
        where[record.id] = dot
        line = (dot.origin, sent.publisher, sent.connected_at if sent.receipted_by is None else None)
        if sent.number <= last.get(line, 0):
            wrong.append(f"I4 log: {dot} is {record.id}, after number {last[line]} of the same publisher")
        last[line] = sent.number
    return wrong


def torn_transactions(records: Mapping[Dot, Published], ledger: Ledger, allowed_losses: AllowedLosses) -> list[str]:
    """What was sent in one transaction is in the logs as a whole or not at all. Only for journals that keep all.

    What is settled may be in none any more: a node that makes a damaged journal whole again gets what its peers have
    left.
    """
    logged = {record.id for record in records.values()}
    known = logged | ledger.consumed
    whole: dict[tuple[str, int], list[str]] = {}
    for message in ledger.sent.values():
        if (
            message.transaction
            and not message.destination.startswith("/topic/")
            and message.id not in allowed_losses.ids
        ):
            whole.setdefault((message.publisher, message.transaction), []).append(message.id)
    return [
        f"torn transaction: of {ids} only {sorted(logged.intersection(ids))} are in the logs"
        for ids in whole.values()
        if not logged.isdisjoint(ids) and not known.issuperset(ids)
    ]
