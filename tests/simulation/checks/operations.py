"""Administration: what operators changed, purged, moved and redrove while messages flowed.

O1   a message confirmed for an operated queue is delivered in the end, was processed before, or was purged
O2   a purge settles only messages that its node had when it began there
O3   a message is in one queue: none of those that are left is delivered as two records, unless its node was taken over
     and the other node may not have known of a move
O4   a node does not deliver again what it has settled by a purge, move or deletion
D1   in the end all nodes have the same definitions: of each key the latest version that any journal has
D2   a confirmed change is among the records, unless only a lost disk had it and no majority was reported to have it
D3   each node applies the policies that it has, and routes by the exchanges and bindings that it has
B1   a queue has at most one copy of a message that was sent to its source
B2   it has a copy if the accepting node had such bindings and exchanges for a while, and none if it never had them
B3   all copies of a message that its node made are in one batch
P1   soon after a node has the permission, a user who may not consume gets nothing; the client itself reports violations
P2   nor is a message of that user accepted
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from qmq.broker.routing.binding import split_exchange
from qmq.broker.routing.table import RoutingTable
from qmq.definitions.definition import Definition, Key
from qmq.definitions.table import DefinitionTable
from qmq.model.dots import Dot, Origin
from qmq.model.routing_names import PREFIX
from qmq.storage.format.batch import REST, batch_records
from qmq.storage.format.definition_record import unpack_definition
from qmq.storage.format.failure_records import unpack_dead
from qmq.storage.format.record import RecordKind, unpack_dots
from tests.simulation.checks import lifetimes
from tests.simulation.cluster import Member
from tests.simulation.evidence import AllowedLosses, batches_of
from tests.simulation.ledger import Ledger, Sent, id_of
from tests.simulation.operations import BURIED, DECLARED, DEFINED, OPERATED, Job, Operations
from tests.simulation.plan import Family
from tests.simulation.routing import COPIED, SENDS, queues_of
from tests.simulation.stage import Stage
from tests.simulation.workloads.serve_operated import headers_of, kind_of

PURGES = ("purge", "delete")

PLACES = frozenset((*OPERATED, BURIED, *DECLARED, *COPIED))


@dataclass(slots=True)
class History:
    """What the journals of all nodes say of operated queues and of definitions. They keep everything."""

    places: dict[str, dict[Dot, str]] = field(default_factory=dict)
    """Message → each record that accepts it → the queue."""
    settled: set[Dot] = field(default_factory=set)
    """What was settled where it was, except by moves."""
    definitions: list[Definition] = field(default_factory=list)
    batches: dict[str, set[tuple[Origin, int]]] = field(default_factory=dict)
    """Message that was copied → the batches with its copies, each by its first record."""


def history_of(members: Iterable[Member]) -> History:
    """Read all journals, each record once."""
    found = History()
    done: set[Dot] = set()
    for member in members:
        for head, batch in batches_of(member):
            for record in batch_records(batch):
                dot = Dot(head.origin, record.sequence)
                if dot in done:
                    continue
                done.add(dot)
                if record.kind == RecordKind.SETTLE:
                    found.settled.update(unpack_dots(record.body))
                elif record.kind == RecordKind.DEFINITION:
                    found.definitions.append(unpack_definition(record.body))
                elif record.kind in (RecordKind.PUBLISH, RecordKind.DEAD) and record.destination in PLACES:
                    body = record.body if record.kind == RecordKind.PUBLISH else unpack_dead(record.body)[2]
                    found.places.setdefault(id_of(body), {})[dot] = record.destination
                    if record.destination in COPIED and not head.attributes & REST:
                        found.batches.setdefault(id_of(body), set()).add((head.origin, head.first))
    return found


def unrestored(stage: Stage) -> list[str]:
    """What is to be waited for before the end can be judged."""
    if stage.plan.family is not Family.OPERATORS:
        return []
    if not stage.ledger.operations.is_restored:
        return ["operators have not restored what they had changed"]
    tables = [
        sorted(member.node.settings_parts.definitions.table.present())
        for member in stage.members
        if member.node is not None
    ]
    if not all(table == tables[0] for table in tables):
        return ["D1 nodes have different definitions"]
    return lifetimes.left_behind(stage.members)


def broken(stage: Stage) -> list[str]:
    """All of it."""
    if stage.plan.family is not Family.OPERATORS:
        return []
    ledger, members, allowed_losses = stage.ledger, stage.members, stage.allowed_losses
    history = history_of(members)
    are_clocks_right = not stage.plan.count("clock") and not ledger.operations.is_clock_in_doubt
    wrongs = lost(ledger, history, allowed_losses, are_clocks_right=are_clocks_right)
    wrongs += given_twice(ledger.operations, stage.observer.taken_over)
    wrongs += given_again(ledger.operations, allowed_losses.nodes)
    wrongs += copied_twice(ledger.operations)
    wrongs += copied_wrongly(ledger, history, allowed_losses)
    wrongs += split(ledger, history)
    model = DefinitionTable(history.definitions)
    for member in members:
        wrongs += unlike(member, model, allowed_losses.dots)
        wrongs += not_applied(member)
    wrongs += lifetimes.left_over(ledger, model, members) if are_clocks_right else []
    wrongs += lifetimes.resurrected(ledger.operations, model)
    wrongs += lifetimes.left_behind(members)
    return wrongs + unrecorded(ledger.operations, model, allowed_losses.dots)


def lost(
    ledger: Ledger, history: History, allowed_losses: AllowedLosses, *, are_clocks_right: bool = True
) -> list[str]:
    """O1, O2 and L1."""
    operations = ledger.operations
    given = {one.id for one in operations.given if one.is_final}
    wrongs: list[str] = []
    for message in ledger.receipted:
        if message.destination not in (*OPERATED, *DECLARED) or message.id in allowed_losses.ids:
            continue
        if message.id in given or message.id in ledger.consumed:
            continue
        taken, purges = takers(operations, history, message, are_clocks_right=are_clocks_right)
        if taken:
            continue
        text = f"{message.id} was sent to {message.destination} and is nowhere; it was {history.places.get(message.id)}"
        if message.destination in DECLARED:
            marks = [(one.node, one.began, one.mark) for _, one in purges]
            wrongs.append(f"L1 lost: {text}, under {operations.under.get(message.id)}; deletions: {marks}")
        else:
            wrongs.append(f"O2 later: {text}; purges: {purges}" if purges else f"O1 lost: {text}")
    return wrongs


def takers(
    operations: Operations, history: History, message: Sent, queue: str = "", *, are_clocks_right: bool = True
) -> tuple[bool, list[tuple[Dot, Job]]]:
    """Whether a purge or deletion may have settled a record of the message (in `queue`), and all that came near it."""
    settled = {
        dot: place
        for dot, place in history.places.get(message.id, {}).items()
        if dot in history.settled and queue in ("", place)
    }
    purges = [(dot, one) for dot, place in settled.items() for one in purges_of(operations.jobs, message.id, place)]
    return any(
        lifetimes.may_have_taken(operations, one, message, dot, are_clocks_right=are_clocks_right)
        for dot, one in purges
    ), purges


def purges_of(jobs: Iterable[Job], message_id: str, queue: str) -> list[Job]:
    """The jobs that may have settled this message in this queue, as far as it was there in time."""
    return [
        one
        for one in jobs
        if one.job.verb in PURGES
        and not one.job.is_dry_run
        and one.job.queue == queue
        and (not one.job.selector or kind_of(message_id) == "k1")
    ]


def given_twice(operations: Operations, taken_over: Collection[str]) -> list[str]:
    """O3."""
    records: dict[str, set[Dot]] = {}
    for one in operations.given:
        if one.is_final and one.queue not in COPIED:
            records.setdefault(one.id, set()).add(one.dot)
    return [
        f"O3 twice: {message_id} was given as {sorted(dots)}"
        for message_id, dots in records.items()
        if len(dots) > 1 and not {dot.origin.node for dot in dots} & set(taken_over)
    ]


def given_again(operations: Operations, forgetful: Collection[str]) -> list[str]:
    """O4; except by those in `forgetful`, which lost their disks."""
    return [
        f"O4 again: {one.node} gave {one.id} as {one.dot}, which it had settled at {at:.3f}"
        for one in operations.given
        if one.node not in forgetful
        and (at := operations.settled.get((one.node, one.dot))) is not None
        and one.since > at
    ]


def copied_twice(operations: Operations) -> list[str]:
    """B1."""
    copies: dict[tuple[str, str], set[Dot]] = {}
    for one in operations.given:
        if one.queue in COPIED:
            copies.setdefault((one.id, one.queue), set()).add(one.dot)
    return [
        f"B1 twice: {message_id} was copied to {queue} as {sorted(dots)}"
        for (message_id, queue), dots in copies.items()
        if len(dots) > 1
    ]


def copied_wrongly(ledger: Ledger, history: History, allowed_losses: AllowedLosses) -> list[str]:
    """B2. A copy may be gone by a deletion of its queue."""
    operations = ledger.operations
    copied = {(one.id, one.queue) for one in operations.given}
    return [
        f"B2 {'missing' if is_bound else 'copied'}: {message_id} and {queue}, at {ledger.sent[message_id].node}"
        for message_id, queues in operations.expected.items()
        for queue, is_bound in queues.items()
        if message_id not in allowed_losses.ids
        and ((message_id, queue) in copied) is not is_bound
        and not takers(operations, history, ledger.sent[message_id], queue, are_clocks_right=False)[0]
    ]


def split(ledger: Ledger, history: History) -> list[str]:
    """B3; a node that adopts copies makes none."""
    return [
        f"B3 split: the copies of {message_id} are in the batches {sorted(mine)}"
        for message_id, batches in history.batches.items()
        if len(mine := {one for one in batches if one[0].node == ledger.sent[message_id].node}) > 1
    ]


def unlike(member: Member, model: DefinitionTable, gone: Collection[Dot]) -> list[str]:
    """D1 for one node. What it has from a peer whose disk is lost may be in no journal."""
    assert member.node is not None
    table = member.node.settings_parts.definitions.table
    mine, right = _present(table), _present(model)
    return [
        f"D1 {member.name}: {key} is {mine.get(key)}, and should be {right.get(key)}"
        for key in sorted({*mine, *right})
        if mine.get(key) != right.get(key) and not (key in table.by_key and table.by_key[key].version.dot in gone)
    ]


def _present(table: DefinitionTable) -> Mapping[Key, Definition]:
    return {one.key: one for one in table.present()}


def not_applied(member: Member) -> list[str]:
    """D3."""
    assert member.node is not None
    wrongs: list[str] = []
    for name in DEFINED:
        one = member.node.settings_parts.definitions.table.get(Key("policy", name))
        policy = member.node.settings_parts.policies.of(name)
        wanted = {} if one is None or one.value is None else one.value
        applied = {key: getattr(policy, key) for key in wanted} if policy.pattern == name else {}
        if applied != wanted:
            wrongs.append(f"D3 {member.name} applies {applied} to {name}, and should apply {wanted}")
    headers = headers_of("p.1")
    for destination in SENDS:
        wanted_queues = queues_of(member.node.settings_parts.definitions.table, destination, headers)
        queues = _routed(member.node.settings_parts.routing.table, destination, headers)
        if queues != wanted_queues:
            wrongs.append(f"D3 {member.name} copies {destination} to {queues}, and should to {wanted_queues}")
    return wrongs


def _routed(table: RoutingTable, destination: str, headers: Mapping[str, str]) -> set[str]:
    if destination.startswith(PREFIX):
        return set(table.queues_of_exchange(*split_exchange(destination), headers))
    return set(table.queues_of_topic(destination))


def unrecorded(operations: Operations, model: DefinitionTable, gone: Collection[Dot]) -> list[str]:
    """D2."""
    return [
        f"D2 {one.by} has confirmed {one.key} as {one.version}, and no journal has it or a later change"
        for one in operations.changes
        if (one.is_on_majority or one.version.dot not in gone)
        and (one.key not in model.by_key or model.by_key[one.key].version < one.version)
    ]
