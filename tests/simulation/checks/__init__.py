"""The invariants, judged on what the disks hold and what clients saw. Every broken one is one line of text.

`unfinished` says what the mesh still has to do, and is asked again and again until nothing is left or the time is over;
`broken` is asked once, at the end. A new check is a function in the module of its matter, pure where it can be, and a
line here.

What only a lost disk had is excused: `Excuses` is told in the instant of the loss, and knows then what every other
disk has.
"""

from collections.abc import Collection, Iterable

from qmq.dots import Origin, Vector, covers
from tests.simulation.checks import fanouts, lifetimes, moves, operations, queues, records, toil, topics, turns
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
"""Of one matter, while the mesh is still at work."""


def unfinished(stage: Stage) -> list[str]:
    """What is missing before all nodes agree, every subscriber is complete and every queue is dry."""
    members = stage.members
    down = [f"{member.name} is down" for member in members if not member.up]
    if down:
        return down
    stage.excuses.look()
    if stage.leaving is not None and queues.lost(stage.ledger, stage.excuses):
        return [f"{stage.leaving.name} has left messages that are not adopted and consumed"]
    return (
        apart(members)
        or operations.unrestored(stage)
        or _unended(stage)
        or unserved([member.name for member in members], members)
        or undrained(members)
        or fanouts.streams_against(fanout_logs(members[0], FANOUTS), stage.ledger, stage.excuses)[:TEXTS_MAX]
        or moves.unreceipted(stage.ledger)[:TEXTS_MAX]
        or moves.places_against(fanout_logs(members[0], FANOUTS), stage.ledger, stage.excuses)[:TEXTS_MAX]
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

    What waits is counted by who serves it, so nothing is finished while nobody does.
    """
    served = {owner for member in core for owner in handed_out_by(member)}
    return [f"nobody serves the messages of {owner}" for owner in owners if owner not in served]


def apart(members: Collection[Member], *, are_all: bool = True) -> list[str]:
    """Who of `members` lacks records that another has.

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


def undrained(members: Iterable[Member]) -> list[str]:
    """Which queue messages of `members` nobody has settled."""
    return [
        f"{member.name} still has {depth} messages of {name}"
        for member in members
        if member.node is not None
        for name, depth in depths(member.node).items()
    ]


def broken(stage: Stage) -> list[str]:
    """What is wrong now that everything has ended."""
    plan, ledger, excuses, members = stage.plan, stage.ledger, stage.excuses, stage.members
    wrongs = ledger.wrongs + stage.lookout.wrongs
    logs = {member.name: log_of(member) for member in members}
    for member in members:
        kept = {origin: log for origin, log in logs[member.name].items() if origin not in member.forgotten()}
        wrongs += records.holes(member.name, kept, member.vector(), member.damaged)
        wrongs += fanouts.lost_in_logs(member.name, fanout_logs(member, FANOUTS), ledger, excuses)
    rows = {member.name: fanout_logs(member, [*FANOUTS, INSISTED]) for member in members}
    wrongs += fanouts.unlike(rows, excuses)
    wrongs += fanouts.gaps_that_are_none(rows, ledger)
    wrongs += records.differences(logs)
    logged = published(logs.values())
    adopted = {} if stage.leaving is None else left_for_good.adopted(logged, ledger, stage.leaving.name)
    wrongs += left_for_good.adopted_twice(adopted)
    wrongs += records.inventions(logged, ledger, adopted)
    if plan.journal_keep_bytes > KEEPS_ALL_BYTES:
        wrongs += records.torn_transactions(logged, ledger, excuses)
    wrongs += topics.unseen(ledger)
    wrongs += fanouts.streams_against(fanout_logs(members[0], FANOUTS), ledger, excuses)
    wrongs += _moved_wrongly(stage)
    wrongs += queues.lost(ledger, excuses)
    # Of the stores: a short journal has dropped them on nodes that still have them.
    insisted = {message_id for m in members for _, message_id in fanout_logs(m, [INSISTED])[INSISTED]}
    wrongs += queues.lost_copies(ledger, excuses, insisted)
    wrongs += queues.unmarked(ledger)
    wrongs += queues.given_as_two_records(ledger)
    forgetful = excuses.nodes
    if stage.leaving is None:  # what a node that was away had settled may have been adopted meanwhile
        wrongs += queues.given_again_where_settled(ledger, forgetful)
    wrongs += toil.late(plan, ledger)
    wrongs += toil.early(ledger)
    wrongs += toil.tried_too_often(plan, ledger, sum(member.lives for member in members))
    wrongs += toil.rejuvenated(plan, ledger, stage.lookout.taken_over)
    if not forgetful:
        wrongs += toil.buried_wrongly(ledger, stage.lookout.taken_over)
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
    ledger, excuses, members = stage.ledger, stage.excuses, stage.members
    wrongs = moves.places_against(fanout_logs(members[0], FANOUTS), ledger, excuses)
    forgetful = excuses.nodes
    wrongs += moves.given_again_where_acknowledged(ledger, forgetful)
    for member in members:
        insisted = fanout_logs(member, [INSISTED])
        wrongs += moves.lost_when_insisted(member.name, insisted, ledger, excuses)
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
