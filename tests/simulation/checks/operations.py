"""Administration: what operators changed, purged, moved and redrove while messages flowed.

O1   what was receipted for an operated queue is given in the end, was worked on before, or was purged
O2   a purge settles only what its node had when it began there
O3   a message is in one queue: of those that are left none is given as two records, except of a node that was taken
     over, where a move may not have been known
O4   what a node has settled by a purge, move or deletion it does not give again
D1   in the end all nodes have the same definitions: of each key the latest version that any journal has
D2   a confirmed change is among the records, unless only a lost disk had it
D3   each node applies the policies that it has
B1   a queue has one copy at most of a message that was sent to its source
B2   it has a copy if the node that took the message had the binding for a while, and none if it had none
P1   a user who may not consume is given nothing, a moment after the node has the permission; the client says so itself
P2   nor is a message of that user accepted
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from qmq.definitions.definition import Definition, Key
from qmq.definitions.table import DefinitionTable
from qmq.dots import Dot
from qmq.storage.format.batch import batch_records
from qmq.storage.format.definition_record import unpack_definition
from qmq.storage.format.failure_records import unpack_dead
from qmq.storage.format.record import RecordKind, unpack_dots
from tests.simulation.cluster import Member
from tests.simulation.evidence import Excuses, batches_of
from tests.simulation.ledger import Ledger, id_of
from tests.simulation.operations import BOUND, BURIED, DEFINED, OPERATED, Job, Operations
from tests.simulation.plan import Family
from tests.simulation.stage import Stage
from tests.simulation.workloads.serve_operated import kind_of

PURGES = ("purge", "delete")


@dataclass(slots=True)
class History:
    """What the journals of all nodes say of operated queues and of definitions. They keep everything."""

    places: dict[str, dict[Dot, str]] = field(default_factory=dict)
    """Message → each record that accepts it → the queue."""
    settled: set[Dot] = field(default_factory=set)
    """What was settled where it was, moves aside."""
    definitions: list[Definition] = field(default_factory=list)


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
                elif record.kind in (RecordKind.PUBLISH, RecordKind.DEAD) and record.destination in (*OPERATED, BURIED):
                    body = record.body if record.kind == RecordKind.PUBLISH else unpack_dead(record.body)[2]
                    found.places.setdefault(id_of(body), {})[dot] = record.destination
    return found


def unrestored(stage: Stage) -> list[str]:
    """What is to be waited for before the end can be judged."""
    if stage.plan.family is not Family.OPERATORS:
        return []
    if not stage.ledger.operations.is_restored:
        return ["operators have not restored what they had changed"]
    tables = [sorted(member.node.definitions.table.present()) for member in stage.members if member.node is not None]
    return [] if all(table == tables[0] for table in tables) else ["D1 nodes have different definitions"]


def broken(stage: Stage) -> list[str]:
    """All of it."""
    if stage.plan.family is not Family.OPERATORS:
        return []
    ledger, members, excuses = stage.ledger, stage.members, stage.excuses
    history = history_of(members)
    wrongs = lost(ledger, history, excuses)
    wrongs += given_twice(ledger.operations, stage.lookout.taken_over)
    wrongs += given_again(ledger.operations, excuses.nodes)
    wrongs += copied_twice(ledger.operations)
    wrongs += copied_wrongly(ledger, excuses)
    model = DefinitionTable(history.definitions)
    for member in members:
        wrongs += unlike(member, model, excuses.dots)
        wrongs += not_applied(member)
    return wrongs + unrecorded(ledger.operations, model, excuses.dots)


def lost(ledger: Ledger, history: History, excuses: Excuses) -> list[str]:
    """O1 and O2."""
    operations = ledger.operations
    given = {one.id for one in operations.given if one.is_final}
    wrongs: list[str] = []
    for message in ledger.receipted:
        if message.destination not in OPERATED or message.id in excuses.ids:
            continue
        if message.id in given or message.id in ledger.consumed:
            continue
        places = {dot: queue for dot, queue in history.places.get(message.id, {}).items() if dot in history.settled}
        purges = [(dot, one) for dot, queue in places.items() for one in purges_of(operations.jobs, message.id, queue)]
        if any(one.had.get(dot.origin, 0) >= dot.sequence for dot, one in purges):
            continue
        text = f"{message.id} was sent to {message.destination} and is nowhere; settled: {places}"
        wrongs.append(f"O2 later: {text}; purges: {purges}" if purges else f"O1 lost: {text}")
    return wrongs


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
        if one.is_final and one.queue not in BOUND:
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
        if one.queue in BOUND:
            copies.setdefault((one.id, one.queue), set()).add(one.dot)
    return [
        f"B1 twice: {message_id} was copied to {queue} as {sorted(dots)}"
        for (message_id, queue), dots in copies.items()
        if len(dots) > 1
    ]


def copied_wrongly(ledger: Ledger, excuses: Excuses) -> list[str]:
    """B2."""
    copied = {(one.id, one.queue) for one in ledger.operations.given}
    return [
        f"B2 {'missing' if is_bound else 'copied'}: {message_id} and {queue}, at {ledger.sent[message_id].node}"
        for message_id, queues in ledger.operations.expected.items()
        for queue, is_bound in queues.items()
        if message_id not in excuses.ids and ((message_id, queue) in copied) is not is_bound
    ]


def unlike(member: Member, model: DefinitionTable, gone: Collection[Dot]) -> list[str]:
    """D1 for one node. What it has from a peer whose disk is lost may be in no journal."""
    assert member.node is not None
    table = member.node.definitions.table
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
        one = member.node.definitions.table.get(Key("policy", name))
        policy = member.node.policies.of(name)
        wanted = {} if one is None or one.value is None else one.value
        applied = {key: getattr(policy, key) for key in wanted} if policy.pattern == name else {}
        if applied != wanted:
            wrongs.append(f"D3 {member.name} applies {applied} to {name}, and should apply {wanted}")
    return wrongs


def unrecorded(operations: Operations, model: DefinitionTable, gone: Collection[Dot]) -> list[str]:
    """D2."""
    return [
        f"D2 {one.by} has confirmed {one.key} as {one.version}, and no journal has it or a later change"
        for one in operations.changes
        if one.version.dot not in gone and (one.key not in model.by_key or model.by_key[one.key].version < one.version)
    ]
