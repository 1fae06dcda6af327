"""What a directory remembers of the mesh, by name, in the catalog's table of facts.

learner        there is such a fact: the disk began empty (or turned out to be an old copy) and does not count yet
disk/NODE      the uuid of the directory that this node had when we met it last
retired/NODE   it is retired: `retirement_fact`
unchecked      there is such a fact: the queue store may hold what is done long ago (`qmq.mesh.repair.catch_up`)
sealed/ORIGIN, forgotten/ORIGIN   a dead incarnation: `seals`
deleted/FANOUT  JSON: its deletions that can still matter: `qmq.storage.format.delete_record`
gone/ORIGIN    where stretches of it end that are nowhere any more: `gone_record`
self-retired   this node has learnt that it is retired itself: the directory is not used again
takeover-after the longest `takeover_after_seconds`, in ms, that a lease may lean on (`qmq.broker.takeover.leases`)
queues-in      the kind of queue store that this node used last (`QueueStore.kind`)
unseen         there is such a fact: the node ended in order, and no consumer had seen what it left in its queues
stable         JSON, vector: `qmq.definitions.table.DefinitionTable.stable`
dropped        JSON, vector: deletions of queues whose older messages of this node are dropped
clock          JSON, `[µs, µs]`: the time when this node last noted it, and when a doubt about its clock began or 0
clock-first    the time when this node believed its clock for the first time on this disk, µs
"""

import json
from collections.abc import Mapping
from typing import Final

from qmq.model.dots import Vector, parse_origin
from qmq.model.members import Retirement
from qmq.storage.disk.sqlite import vector_from_json, vector_to_json

LEARNER: Final = "learner"
DISK: Final = "disk/"
SELF_RETIRED: Final = "self-retired"
RETIRED: Final = "retired/"
UNCHECKED: Final = "unchecked"
QUEUES_IN: Final = "queues-in"
TAKEOVER_AFTER: Final = "takeover-after"
CLOCK: Final = "clock"
CLOCK_FIRST: Final = "clock-first"
UNSEEN: Final = "unseen"
STABLE: Final = "stable"
DROPPED: Final = "dropped"


def disks_of(facts: Mapping[str, str]) -> dict[str, str]:
    """Peer → the uuid of its directory."""
    return {name.removeprefix(DISK): uuid for name, uuid in facts.items() if name.startswith(DISK)}


def clock_of(facts: Mapping[str, str]) -> tuple[int, int]:
    """The time when this node last noted it, and when a doubt about its clock began; µs, 0: never."""
    noted_us, doubted_us = json.loads(facts.get(CLOCK, "[0, 0]"))
    return noted_us, doubted_us


def retirements_of(facts: Mapping[str, str]) -> list[Retirement]:
    """The nodes that are known to be retired."""
    return [
        _read_retirement(name.removeprefix(RETIRED), text) for name, text in facts.items() if name.startswith(RETIRED)
    ]


def retirement_fact(retirement: Retirement) -> dict[str, str | None]:
    """How it is remembered."""
    sealed = {str(origin): last for origin, last in retirement.sealed.items()}
    fact = {"adopter": retirement.adopter, "sealed": sealed, "heard_us": retirement.heard_us}
    return {RETIRED + retirement.node: json.dumps(fact)}


def _read_retirement(node: str, text: str) -> Retirement:
    found = json.loads(text)
    sealed = {parse_origin(origin): last for origin, last in found["sealed"].items()}
    return Retirement(node=node, adopter=found["adopter"], sealed=sealed, heard_us=found.get("heard_us", 0))


def dropped_of(facts: Mapping[str, str]) -> Vector:
    """See `qmq.settings.definitions.deleted_queues`."""
    return vector_from_json(json.loads(facts.get(DROPPED, "{}")))


def stable_of(facts: Mapping[str, str]) -> Vector:
    """What all members had when tombstones of definitions were forgotten."""
    return vector_from_json(json.loads(facts.get(STABLE, "{}")))


def stable_fact(stable: Vector) -> dict[str, str | None]:
    """How it is remembered."""
    return {STABLE: json.dumps(vector_to_json(stable))}
