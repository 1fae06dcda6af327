"""The clients of a simulated mesh, and when they begin. What each does is in a module of its own.

Each draws from a generator of its own name, so another client more does not change what they do.
"""

import trio

from tests.simulation.ledger import Place
from tests.simulation.operations import DECLARED, GUARDED, OPERATED
from tests.simulation.plan import Family
from tests.simulation.routing import SENDS
from tests.simulation.stage import Stage
from tests.simulation.workloads.collect import collect
from tests.simulation.workloads.consume import consume
from tests.simulation.workloads.follow import follow
from tests.simulation.workloads.gateways.amqp import consume_amqp, declare_vhost, own_queue, publish_amqp
from tests.simulation.workloads.gateways.beanstalk import put_jobs, work_jobs
from tests.simulation.workloads.hold import hold, supply
from tests.simulation.workloads.insist import insist
from tests.simulation.workloads.keep_place import keep_place
from tests.simulation.workloads.listen import listen
from tests.simulation.workloads.names import AMQP_QUEUES, FANOUTS, INSISTED_QUEUE
from tests.simulation.workloads.operate import operate, restore
from tests.simulation.workloads.poison import make_trouble, selector_cost
from tests.simulation.workloads.publish import publish
from tests.simulation.workloads.roll_call import attend, call_the_roll
from tests.simulation.workloads.serve_operated import consume_operated, supply_operated, use_guarded, watch_definitions
from tests.simulation.workloads.share_groups import share_groups, supply_groups
from tests.simulation.workloads.take_turns import pile_up, take_turns
from tests.simulation.workloads.visit import follow_durably, log_in_as_guest, visit

__all__ = ["call_the_roll", "start_audience", "start_insistent", "start_publishers"]

SHARING = (Family.CUTS, Family.TAKEOVERS)
"""With pauses, during which no link breaks, and longer ones."""


def start_publishers(stage: Stage, nursery: trio.Nursery) -> None:
    """They end by themselves when the phase of faults does."""
    for number in range(stage.plan.publishers):
        nursery.start_soon(publish, stage, f"p{number}")
    nursery.start_soon(make_trouble, stage, "t0")
    if stage.plan.family is Family.RESTARTS:
        nursery.start_soon(supply, stage, "u0")
    if stage.plan.family is Family.OPERATORS:
        for number in range(2):
            nursery.start_soon(operate, stage, f"m{number}")
            nursery.start_soon(supply_operated, stage, f"o{number}", (*OPERATED, *OPERATED, GUARDED, *DECLARED))
        nursery.start_soon(supply_operated, stage, "v0", SENDS)
    if stage.plan.family is Family.GATEWAYS:
        nursery.start_soon(declare_vhost, stage, "av0")
        for number in range(2):
            nursery.start_soon(publish_amqp, stage, f"ap{number}")
            nursery.start_soon(put_jobs, stage, f"bp{number}")
    if stage.plan.family in SHARING:
        for number in range(2):
            nursery.start_soon(supply_groups, stage, f"gp{number}")
    if stage.plan.quiet:
        nursery.start_soon(pile_up, stage, "b0")


def start_insistent(stage: Stage, nursery: trio.Nursery) -> None:
    """They end when all that they have sent is receipted."""
    nursery.start_soon(insist, stage, "i0")
    if stage.plan.family is Family.STALE:
        for number in range(2):
            nursery.start_soon(insist, stage, f"j{number}", INSISTED_QUEUE, 0.5)


def start_audience(stage: Stage, nursery: trio.Nursery) -> None:
    """Those who stay until the end and are cancelled then."""
    plan = stage.plan
    for number in range(plan.followers):
        nursery.start_soon(follow, stage, f"s{number}", FANOUTS[number % len(FANOUTS)])
    for number in range(plan.consumers):
        nursery.start_soon(consume, stage, f"c{number}")
    place = Place(FANOUTS[0])
    stage.ledger.places.append(place)
    for name in ("k0", "k1"):
        nursery.start_soon(keep_place, stage, name, place)
    for member in stage.members:
        nursery.start_soon(attend, stage, member)
    for number in range(2):
        nursery.start_soon(selector_cost, stage, f"w{number}")
    if plan.family is Family.RESTARTS:
        for number in range(3):
            nursery.start_soon(hold, stage, f"h{number}")
    if plan.family in SHARING:
        for number in range(3):
            nursery.start_soon(share_groups, stage, f"gc{number}")
    if plan.family is Family.STALE:
        nursery.start_soon(collect, stage, "q0")
    if plan.family is Family.OPERATORS:
        nursery.start_soon(restore, stage, "m9")
        nursery.start_soon(watch_definitions, stage)
        nursery.start_soon(use_guarded, stage, "g0")
        nursery.start_soon(visit, stage, "x0")
        nursery.start_soon(follow_durably, stage, "y0")
        nursery.start_soon(log_in_as_guest, stage, "z0")
        for number in range(2):
            nursery.start_soon(consume_operated, stage, f"d{number}")
    if plan.family is Family.GATEWAYS:
        for number in range(2):
            for vhost in AMQP_QUEUES:
                nursery.start_soon(consume_amqp, stage, f"ac{number}{vhost.removeprefix('/')}", vhost)
            nursery.start_soon(work_jobs, stage, f"bc{number}")
            nursery.start_soon(own_queue, stage, f"ao{number}")
    if plan.quiet:
        nursery.start_soon(listen, stage, "l0", stage.members[-1])
        for number in range(2):
            nursery.start_soon(take_turns, stage, f"e{number}")
