"""What a directory remembers of the mesh, by name, in the catalog's table of facts.

learner        there is such a fact: the disk began empty (or turned out to be an old copy) and does not count yet
disk/NODE      the uuid of the directory that this node had when we met it last
retired/NODE   it is retired: `retire_record`
unchecked      there is such a fact: the queue store may hold what is done long ago (`qmq.server.repairs`)
sealed/ORIGIN, forgotten/ORIGIN   a dead incarnation: `seals`
gone/ORIGIN    where stretches of it end that are nowhere any more: `gone_record`
self-retired   this node has learnt that it is retired itself: the directory is not used again
told-after     the longest `takeover_after_seconds`, in ms, that peers may lean on (`qmq.broker.ownership`)
heedless/NODE  when we met it last, it obeyed no terms: it must not be taken over
"""

from collections.abc import Mapping
from typing import Final

from qmq.members import Retirement
from qmq.storage.retire_record import read_retirement, retirement_text

LEARNER: Final = "learner"
DISK: Final = "disk/"
SELF_RETIRED: Final = "self-retired"
RETIRED: Final = "retired/"
HEEDLESS: Final = "heedless/"
UNCHECKED: Final = "unchecked"
TOLD_AFTER: Final = "told-after"


def disks_of(facts: Mapping[str, str]) -> dict[str, str]:
    """Peer → the uuid of its directory."""
    return {name.removeprefix(DISK): uuid for name, uuid in facts.items() if name.startswith(DISK)}


def heedless_of(facts: Mapping[str, str]) -> set[str]:
    """The peers that obey no terms."""
    return {name.removeprefix(HEEDLESS) for name in facts if name.startswith(HEEDLESS)}


def retirements_of(facts: Mapping[str, str]) -> list[Retirement]:
    """The nodes that are known to be retired."""
    return [
        read_retirement(name.removeprefix(RETIRED), text) for name, text in facts.items() if name.startswith(RETIRED)
    ]


def retirement_fact(retirement: Retirement) -> dict[str, str | None]:
    """How it is remembered."""
    return {RETIRED + retirement.node: retirement_text(retirement)}
