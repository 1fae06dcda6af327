"""Mistakes with the right to serve another node's queue messages."""

from collections.abc import Collection, Iterator, Mapping
from unittest.mock import patch

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.queues.queues import Queues
from qmq.broker.takeover.leases import LEASE, Ownership, PeerReport
from qmq.mesh.membership.start_hold import StartHold
from qmq.mesh.membership.takeover import Takeover
from tests.simulation.plan import Family
from tests.simulation.plants.registry import seeded_bug


@seeded_bug(Family.TAKEOVERS, "I9", seed=3)
def majority_of_recent_peers() -> Iterator[None]:
    """A majority is one of the nodes that were heard lately, not of the peers file."""
    begin = Takeover.__init__

    def begin_with_view(takeover: Takeover, *arguments: object) -> None:
        begin(takeover, *arguments)  # type: ignore[arg-type]
        rules = takeover.rules

        def is_majority(nodes: Collection[str]) -> bool:
            since = trio.current_time() - rules.after
            view = {rules.node, *(name for name, heard in rules.peers.items() if heard.at > since)}
            return 2 * len(view.intersection(nodes)) > len(view)

        rules.is_majority = is_majority
        takeover._membership.is_majority = is_majority  # type: ignore[method-assign, assignment]

    with patch.object(Takeover, "__init__", begin_with_view):
        yield


@seeded_bug(Family.TAKEOVERS, "I9")
def lease_without_echo() -> Iterator[None]:
    """What a node hears supports its lease, although no node may hear it."""

    def echo_until(rules: Ownership, name: str, heard: PeerReport, after_us: int, now: float) -> float:
        return heard.at + rules.after * LEASE

    with patch.object(Ownership, "_echo_until", echo_until):
        yield


@seeded_bug(Family.TAKEOVERS, "I9", "I7")
def no_start_hold() -> Iterator[None]:
    """A node that starts delivers its messages at once, before it has asked its peers."""
    set_held = Takeover._set_held

    def set_held_later(takeover: Takeover, out: Outcome) -> None:
        rules = takeover.rules
        if trio.current_time() - rules.awake_since < rules.after:
            queues = takeover._engine.broker.queues
            queues.is_starting = False
            if queues.held:
                queues.release_hold(out)
        else:
            set_held(takeover, out)

    with patch.object(Takeover, "_set_held", set_held_later):
        yield


@seeded_bug(Family.RESTARTS, "I24", seed=2)
def start_without_held_reports() -> Iterator[None]:
    """A node that starts delivers when the records of its peers are here, or after two seconds, whatever they hold."""

    async def run(hold: StartHold) -> None:
        with trio.move_on_after(2.0):
            while not all(hold._mesh.has_caught_up_with(peer) for peer in hold._membership.peers):
                await hold._waker.wait()
        hold.is_over = True
        hold.release()

    with patch.object(StartHold, "run", run):
        yield


@seeded_bug(
    Family.TAKEOVERS,
    "I7",
    "I13",
    "I9",
    found_by="tests/mesh/membership/test_takeover.py::"
    "test_a_loan_that_waits_for_a_slow_link_while_its_server_goes_on_in_a_new_term_comes_once",
)
def no_fence() -> Iterator[None]:
    """What another node lends is taken, however old it is and whichever node serves meanwhile.

    Old loans are mostly kept out by something else: links end with the term, and what was lent comes back.
    """

    def may_borrow(
        takeover: Takeover, peer: str, terms: Mapping[str, int], echo_us: int, owners: set[str]
    ) -> Mapping[str, bool]:
        return dict.fromkeys(owners, True)

    with patch.object(Takeover, "may_borrow", may_borrow):
        yield


@seeded_bug(
    Family.TAKEOVERS,
    "I9",
    found_by="tests/mesh/membership/test_disk_that_hangs.py::"
    "test_a_node_that_stood_still_serves_nothing_that_another_serves",
)
def unsent_deliveries_kept() -> Iterator[None]:
    """A node that loses the right to serve sends what it had decided before.

    Seeds rarely have a pause that ends just there, and consumers elsewhere that are ahead of it.
    """

    def hold(queues: Queues, out: Outcome) -> None:
        queues.held = True

    with patch.object(Queues, "hold", hold):
        yield


@seeded_bug(Family.TAKEOVERS, "I9", "I13", "I21")
def term_not_announced_after_restart() -> Iterator[None]:
    """A node that has won its own term before a restart lends without it, and its peers drop that."""
    begin = Takeover.begin

    def begin_in_term_0(takeover: Takeover) -> None:
        begin(takeover)
        takeover.elections.served.clear()

    with patch.object(Takeover, "begin", begin_in_term_0):
        yield
