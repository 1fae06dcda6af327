"""Gaps: which peer is believed that records are dropped, which peer is asked for the remainder, and when it is given
up.
"""

from qmq.model.dots import Origin, Vector
from qmq.replication.anti_entropy.gaps import Gaps, JournalReach, NextRepair
from qmq.storage.format.missing_range import MissingRange

C = Origin("c", 1)
HAVE: Vector = {C: 5}


def reach(**had: Vector) -> dict[str, JournalReach]:
    """Peers that we follow, each in its first life, with what it had."""
    return {peer: JournalReach(Origin(peer, 1), vector) for peer, vector in had.items()}


def test_the_origins_own_node_is_believed_at_once() -> None:
    gaps = Gaps()
    gaps.report("c", C, 9)

    assert gaps.next(HAVE, reach(a={C: 20}, c={C: 20})) == NextRepair(MissingRange(C, 5, 9), ["c"])


def test_another_node_is_believed_only_when_no_third_node_may_still_have_the_records() -> None:
    gaps = Gaps()
    gaps.report("a", C, 9)

    assert gaps.next(HAVE, reach(a={C: 20}, b={C: 8})) is None
    assert gaps.next(HAVE, reach(a={C: 20}, b={C: 5})) == NextRepair(MissingRange(C, 5, 9), ["a"])
    gaps.report("b", C, 8)
    assert gaps.next(HAVE, reach(a={C: 20}, b={C: 8})) == NextRepair(MissingRange(C, 5, 9), ["a"])


def test_an_earlier_life_of_the_origins_node_is_like_any_other_node() -> None:
    gaps = Gaps()
    earlier = Origin("c", 7)
    gaps.report("c", earlier, 9)

    assert gaps.next({}, reach(c={earlier: 9}, b={earlier: 9})) is None


def test_a_peer_that_knows_nothing_is_passed_by_and_only_what_all_lack_is_given_up() -> None:
    gaps = Gaps()
    gaps.report("a", C, 9)
    gaps.report("b", C, 12)
    peers = reach(a={C: 20}, b={C: 20})

    gaps.lost("b", C, 7)
    assert gaps.next(HAVE, peers) == NextRepair(MissingRange(C, 5, 9), ["a"])
    gaps.lost("a", C, 9)
    assert gaps.next(HAVE, peers) == NextRepair(MissingRange(C, 5, 7), [])
    assert gaps.next({C: 7}, peers) == NextRepair(MissingRange(C, 7, 12), ["b"])


def test_what_has_come_meanwhile_is_no_gap_any_more() -> None:
    gaps = Gaps()
    gaps.report("a", C, 9)

    assert gaps.next({C: 9}, reach(a={C: 20})) is None
    assert gaps.origins == []


def test_the_word_of_a_peer_ends_with_its_link() -> None:
    gaps = Gaps()
    gaps.report("a", C, 9)
    gaps.lost("a", C, 9)
    gaps.forget("a")
    assert gaps.next(HAVE, reach(a={C: 20})) is None

    gaps.report("a", C, 9)

    assert gaps.next(HAVE, reach(a={C: 20})) == NextRepair(MissingRange(C, 5, 9), ["a"])


def test_damage_is_never_given_up_and_a_damaged_node_is_asked_last() -> None:
    gaps = Gaps()
    gaps.report("c", C, 9, is_hole=True)
    assert gaps.next(HAVE, reach(b={C: 9}, c={C: 20})) is None
    gaps.report("b", C, 9)
    peers = reach(b={C: 9}, c={C: 20})

    assert gaps.next(HAVE, peers) == NextRepair(MissingRange(C, 5, 9), ["b"])
    gaps.lost("b", C, 9)
    assert gaps.next(HAVE, peers) == NextRepair(MissingRange(C, 5, 9), ["c"])
    gaps.lost("c", C, 9)
    assert gaps.next(HAVE, peers) is None


def test_what_the_mesh_has_forgotten_meanwhile_is_no_gap_any_more() -> None:
    gaps = Gaps()
    gaps.report("a", C, 9)
    # Neither of the two has anything of it now, so the other will never tell a gap.
    peers = reach(a={C: 20}, b={C: 20})
    assert gaps.next(HAVE, peers) is None and gaps.origins == [C]

    assert gaps.next(HAVE, peers, {C}) is None
    assert gaps.origins == []
