"""The invariants, checked against the disks and against what clients saw. Each violation is one line of text.

`unfinished` returns what the mesh still has to do. It is called repeatedly, until nothing is left or the time is over.
`broken` is called once, at the end. A new check is a function in the module of its subject, pure if possible, and a
line here.

Records that only a lost disk had may be missing. `AllowedLosses` is filled in the instant of the loss, from what every
other disk has.
"""

from collections.abc import Collection, Iterable

from qmq.definitions.definition import Key
from qmq.model.dots import Origin, Vector, covers
from qmq.node.node import Node
from tests.simulation.checks import fanouts, lifetimes, moves, operations, poison, queues, records, topics, turns
from tests.simulation.checks import members as left_for_good
from tests.simulation.cluster import Member
from tests.simulation.evidence import fanout_logs, log_of, published
from tests.simulation.lookout import handed_out_by
from tests.simulation.plan import Family
from tests.simulation.stage import Stage
from tests.simulation.workloads.names import FANOUTS, INSISTED
from tests.support.depths import depths

KEEPS_ALL_BYTES = 1 << 24
"""A journal that may keep more than this drops nothing in a simulation."""

TEXTS_MAX = 3
"""Of one check, while the mesh is still working."""


def unfinished(stage: Stage) -> list[str]:
    """What is missing until all nodes agree, every subscriber has everything and every queue is empty."""
    members = stage.members
    down = [f"{member.name} is down" for member in members if not member.up]
    if down:
        return down
    stage.allowed_losses.look()
    if stage.leaving is not None and queues.lost(stage.ledger, stage.allowed_losses):
        return [f"{stage.leaving.name} has left messages that are not adopted and consumed"]
    return (
        apart(members)
        or operations.unrestored(stage)
        or _unended(stage)
        or unserved([member.name for member in members], members)
        or undrained(members, are_clocks_set=bool(stage.plan.count("clock")))
        or fanouts.streams_against(fanout_logs(members[0], FANOUTS), stage.ledger, stage.allowed_losses)[:TEXTS_MAX]
        or moves.unreceipted(stage.ledger)[:TEXTS_MAX]
        or moves.places_against(fanout_logs(members[0], FANOUTS), stage.ledger, stage.allowed_losses)[:TEXTS_MAX]
    )


def unfinished_in(stage: Stage, core: Collection[Member]) -> list[str]:
    """What nodes that are alone with each other still have to do, also for the owners that are away.

    What others alone have is not theirs.
    """
    learners = sum(member.node is not None and member.node.membership.is_learner for member in core)
    decides = can_decide(len(stage.plan.nodes), len(core), learners)
    return apart(core, are_all=False) or (unserved(stage.plan.nodes, core) + undrained(core) if decides else [])


def can_decide(nodes: int, core: int, learners: int) -> bool:
    """Whether `core` of `nodes` can lend each other the right to hand out queue messages, alone with each other.

    A node that has lost its disk counts again when it has learnt from a majority of the others, those that lost theirs
    aside. Who is away may be one that it has to ask: then too many nodes have failed, and the queues wait by design.
    """
    counting = core - learners
    return 2 * counting > (nodes - 1 if learners else nodes)


def unserved(owners: Iterable[str], core: Collection[Member]) -> list[str]:
    """I10: whose messages wait because none of `core` hands them out, although it can decide that one does.

    What waits is counted by its server, so nothing is finished while no node does.
    """
    served = {owner for member in core for owner in handed_out_by(member)}
    return [f"no node serves the messages of {owner}" for owner in owners if owner not in served]


def apart(members: Collection[Member], *, are_all: bool = True) -> list[str]:
    """The `members` that are missing records that another has.

    If the members are not all: but for what none of them can account for, see `is_unknown`.
    """
    vectors = {member.name: member.vector() for member in members}
    found: list[str] = []
    for member in members:
        mine = vectors[member.name]
        for other in vectors.values():
            if not covers(mine, other):
                gone = member.forgotten()
                lacking = {origin: last for origin, last in other.items() if origin not in gone}
                if not are_all and not covers(mine, lacking):
                    lacking = {
                        origin: last for origin, last in lacking.items() if not is_unknown(origin, mine, members)
                    }
                if not covers(mine, lacking):
                    found.append(f"{member.name} lacks records: {_lacks(mine, lacking)}")
    return found[:TEXTS_MAX]


def is_unknown(origin: Origin, mine: Vector, members: Collection[Member]) -> bool:
    """Whether no member that has more of `origin` can say what comes behind `mine`.

    Its journal has dropped that, and it went with its queue store. A member that is away may have it, so it is lost
    only when that was heard; and as records have no holes, nothing behind it can be taken before.
    """
    known = mine.get(origin, 0)
    return all(
        any(one.origin == origin and one.after <= known < one.through for one in member.store.missing_ranges())
        for member in members
        if member.store is not None and member.vector().get(origin, 0) > known
    )


def undrained(members: Iterable[Member], *, are_clocks_set: bool = False) -> list[str]:
    """Queue messages of `members` that are not settled."""
    return [
        f"{member.name} still has {depth} messages of {name}"
        for member in members
        if member.node is not None
        for name, depth in depths(member.node).items()
        if not _may_keep(member.node, name, are_clocks_set=are_clocks_set)
    ]


def _may_keep(node: Node, queue: str, *, are_clocks_set: bool) -> bool:
    """Of a deleted queue, a node drops what is older, as far as it can say that by its clock and those of others. It
    knows nothing of the clock of a node that has left before it was heard (docs/queues.md).
    """
    deleted = node.settings_parts.definitions.table.by_key.get(Key("queue", queue))
    if deleted is None or deleted.text is not None:
        return False
    has_left = deleted.version.origin.node not in node.membership.members
    return are_clocks_set or node.mesh_parts.clock_check.in_doubt or has_left


def broken(stage: Stage) -> list[str]:
    """What is wrong now that everything has ended."""
    plan, ledger, allowed_losses, members = stage.plan, stage.ledger, stage.allowed_losses, stage.members
    wrongs = ledger.wrongs + stage.observer.wrongs
    logs = {member.name: log_of(member) for member in members}
    for member in members:
        kept = {origin: log for origin, log in logs[member.name].items() if origin not in member.forgotten()}
        wrongs += records.holes(member.name, kept, member.vector(), member.damaged)
        wrongs += fanouts.lost_in_logs(member.name, fanout_logs(member, FANOUTS), ledger, allowed_losses)
    rows = {member.name: fanout_logs(member, [*FANOUTS, INSISTED]) for member in members}
    wrongs += fanouts.unlike(rows, allowed_losses)
    wrongs += fanouts.gaps_that_are_none(rows, ledger)
    wrongs += records.differences(logs)
    logged = published(logs.values())
    adopted = {} if stage.leaving is None else left_for_good.adopted(logged, ledger, stage.leaving.name)
    wrongs += left_for_good.adopted_twice(adopted)
    wrongs += records.inventions(logged, ledger, adopted)
    if plan.journal_keep_bytes > KEEPS_ALL_BYTES:
        wrongs += records.torn_transactions(logged, ledger, allowed_losses)
    wrongs += topics.unseen(ledger)
    wrongs += fanouts.streams_against(fanout_logs(members[0], FANOUTS), ledger, allowed_losses)
    wrongs += _moved_wrongly(stage)
    wrongs += queues.lost(ledger, allowed_losses)
    # Of the stores: a short journal has dropped them on nodes that still have them.
    insisted = {message_id for m in members for _, message_id in fanout_logs(m, [INSISTED])[INSISTED]}
    wrongs += queues.lost_copies(ledger, allowed_losses, insisted)
    wrongs += queues.unmarked(ledger)
    wrongs += queues.given_as_two_records(ledger)
    wrongs += turns.overtaken(ledger)
    forgetful = allowed_losses.nodes
    if stage.leaving is None:  # what a node that was away had settled may have been adopted meanwhile
        wrongs += queues.given_again_where_settled(ledger, forgetful)
    wrongs += poison.late(plan, ledger)
    wrongs += poison.early(ledger)
    wrongs += poison.tried_too_often(plan, ledger, sum(member.lives for member in members))
    wrongs += poison.rejuvenated(plan, ledger, stage.observer.taken_over)
    if not forgetful:
        wrongs += poison.dead_lettered_wrongly(ledger, stage.observer.taken_over)
    if len(forgetful) <= len(plan.founders) // 2:  # no majority; else nothing is promised
        wrongs += queues.given_again_for_good(ledger)
    wrongs += operations.broken(stage)
    wrongs += _unended(stage)
    if plan.quiet:
        wrongs += queues.given_again_without_a_fault(ledger)
        wrongs += turns.shared(ledger)
    return wrongs


def _unended(stage: Stage) -> list[str]:
    """Exclusive queues of AMQP clients that outlive their connection. For operators see `operations`."""
    return lifetimes.left_behind(stage.members) if stage.plan.family is Family.GATEWAYS else []


def _moved_wrongly(stage: Stage) -> list[str]:
    ledger, allowed_losses, members = stage.ledger, stage.allowed_losses, stage.members
    wrongs = moves.places_against(fanout_logs(members[0], FANOUTS), ledger, allowed_losses)
    forgetful = allowed_losses.nodes
    wrongs += moves.given_again_where_acknowledged(ledger, forgetful)
    for member in members:
        insisted = fanout_logs(member, [INSISTED])
        wrongs += moves.lost_when_insisted(member.name, insisted, ledger, allowed_losses)
        if stage.plan.journal_keep_bytes > KEEPS_ALL_BYTES and member.name not in forgetful:
            wrongs += moves.appended_knowingly(member, insisted)
        if stage.plan.quiet:
            wrongs += moves.appended_without_a_fault(insisted)
    if stage.plan.quiet:
        wrongs += moves.given_again_without_a_fault(ledger)
    return wrongs


def _lacks(vector: Vector, other: Vector) -> str:
    behind = [(origin, vector.get(origin, 0), last) for origin, last in other.items() if vector.get(origin, 0) < last]
    return ", ".join(f"{origin} {have} of {last}" for origin, have, last in behind)
