"""Which nodes count in the mesh: majorities, learners, retired nodes, and peers files that differ."""

from itertools import combinations, pairwise

import pytest

from qmq.model.dots import Origin
from qmq.model.members import Listing, Membership, Retirement, Standing, majority
from qmq.replication.protocol.frame_table import NAMES_MAX
from qmq.storage.catalog.facts import retirement_fact, retirements_of


def listing(names: str, version: int = 1) -> Listing:
    return Listing(version, frozenset(names))


def told(names: str, version: int = 1, *, learner: bool = False, retired: tuple[Retirement, ...] = ()) -> Standing:
    return Standing(listing=listing(names, version), disk="disk", is_learner=learner, retired=retired)


@pytest.mark.parametrize(
    ("voters", "lists", "decides"),
    [
        ("ab", ["abc"], True),
        ("a", ["abc"], False),
        ("ab", ["abcd"], False),
        ("abx", ["abcd"], False),
        ("abc", ["abc", "abcd"], True),
        ("ab", ["abc", "abcd"], False),
        ("acd", ["abc", "abcd"], True),
        ("cd", ["abc", "abcd"], False),
        ("a", ["a"], True),
        ("", ["a"], False),
        ("a", [], False),
    ],
)
def test_a_majority_is_more_than_half_of_every_list(voters: str, lists: list[str], decides: bool) -> None:
    assert majority(voters, lists) is decides


def test_two_majorities_of_files_that_differ_by_one_node_always_share_a_node() -> None:
    old, new = set("abc"), set("abcd")
    both = [set(c) for n in range(5) for c in combinations("abcd", n) if majority(c, [old, new])]
    either = [set(c) for n in range(5) for c in combinations("abcd", n) if majority(c, [old]) or majority(c, [new])]

    assert all(one & other for one in both for other in either)


@pytest.mark.parametrize("size", range(2, 9))
def test_a_node_that_has_learnt_from_a_majority_of_the_others_has_met_every_majority_its_old_disk_was_in(
    size: int,
) -> None:
    nodes = "abcdefgh"[:size]
    others = nodes[1:]
    learnt = [set(c) for n in range(size) for c in combinations(others, n) if majority(c, [others])]
    decided = [set(c) | {"a"} for n in range(size) for c in combinations(others, n) if majority((*c, "a"), [nodes])]

    assert all(teachers & decision for teachers in learnt for decision in decided)


def test_an_empty_disk_has_no_vote_until_it_has_what_a_majority_of_the_others_had() -> None:
    membership = Membership("a", listing("abcde"), is_learner=True)

    news: list[bool] = []
    for peer in ("b", "b", "c", "d"):
        membership.caught_up_with(peer, has_a_past=False)
        news.append(membership.has_learnt)

    assert news == [False, False, False, True]
    assert not membership.may_vote  # it does not count before that is durable
    membership.learnt()
    assert membership.may_vote
    membership.caught_up_with("e", has_a_past=False)
    assert not membership.has_learnt


def test_a_node_that_has_forgotten_too_is_no_source_before_it_has_learnt_and_is_met_again() -> None:
    membership = Membership("a", listing("abcde"), is_learner=True)
    membership.hear("b", told("abcde", learner=True))
    for peer in "bcd":
        membership.caught_up_with(peer, has_a_past=True)
    assert not membership.has_learnt

    membership.hear("b", told("abcde"))
    assert membership.must_reconnect("b")
    membership.caught_up_with("b", has_a_past=True)
    assert not membership.has_learnt, "that is what it had when it had forgotten"
    membership.meets("b")
    membership.caught_up_with("b", has_a_past=True)
    assert membership.has_learnt


@pytest.mark.parametrize("has_a_past", [False, True])
def test_a_node_that_has_learnt_while_it_was_being_met_is_met_again_if_it_had_forgotten(has_a_past: bool) -> None:
    membership = Membership("a", listing("abc"), is_learner=True)
    for standing in (told("abc", learner=True), told("abc")):
        membership.hear("b", standing)
    assert not membership.must_reconnect("b"), "whether it has forgotten anything shows when its records are here"

    for peer in "bc":
        membership.caught_up_with(peer, has_a_past=has_a_past)

    assert membership.must_reconnect("b") == has_a_past
    assert membership.has_learnt != has_a_past
    membership.meets("b")
    membership.caught_up_with("b", has_a_past=has_a_past)
    assert membership.has_learnt


def test_learners_of_a_new_mesh_teach_each_other() -> None:
    membership = Membership("a", listing("abcde"), is_learner=True)
    for peer in "bcd":
        membership.hear(peer, told("abcde", learner=True))
        membership.caught_up_with(peer, has_a_past=False)

    assert membership.has_learnt


def test_when_a_majority_has_forgotten_its_members_are_content_with_each_other() -> None:
    membership = Membership("a", listing("abcde"), is_learner=True)
    for peer in "bc":
        membership.hear(peer, told("abcde", learner=True))
    for peer in "bcd":
        assert not membership.has_learnt
        membership.caught_up_with(peer, has_a_past=True)

    assert membership.has_learnt


def test_a_node_alone_is_no_learner() -> None:
    assert Membership("a", listing("a"), is_learner=True).may_vote


def test_a_learner_counts_as_soon_as_it_says_that_it_is_none() -> None:
    membership = Membership("a", listing("abc"))

    membership.hear("b", told("abc", learner=True))
    before = membership.counts("b"), membership.counts("c")
    membership.hear("b", told("abc"))

    assert before == (False, True)
    assert membership.counts("b")


def test_while_a_peer_goes_by_another_file_both_lists_decide_and_the_smaller_one_sets_the_default_level() -> None:
    membership = Membership("a", listing("abcd", 2))

    membership.hear("b", told("abc"))

    assert membership.members_fewest == 3
    assert not membership.is_majority("ab")
    assert membership.is_majority("abc")
    membership.hear("b", told("abcd", 2))
    assert membership.members_fewest == 4
    assert membership.lists == [frozenset("abcd")]


def test_records_of_a_node_that_only_a_peers_file_names_are_known() -> None:
    membership = Membership("a", listing("abc"))

    membership.hear("b", told("abcd", 2))

    assert membership.origins_known == frozenset("abcd")
    assert membership.members == frozenset("abc")


def test_a_retired_node_is_in_no_list_and_its_records_stay_known() -> None:
    membership = Membership("a", listing("abc"))
    membership.hear("c", told("abc"))

    assert membership.retire(Retirement(node="c", adopter="b"))

    assert membership.peers == ["b"]
    assert membership.is_majority("ab")
    assert not membership.counts("c")
    assert membership.origins_known == frozenset("abc")
    membership.take_up(listing("ab", 2))
    assert membership.origins_known == frozenset("abc")
    assert membership.is_retired("c")


def test_of_two_retirements_of_one_node_every_node_keeps_the_same_adopter() -> None:
    early = Retirement(node="d", adopter="b", sealed={Origin("d", 1): 5}, heard_us=1)
    late = Retirement(node="d", adopter="a", sealed={Origin("d", 1): 9, Origin("d", 2): 1}, heard_us=2)
    one, other = Membership("a", listing("abcd")), Membership("b", listing("abcd"))

    for membership, order in ((one, (early, late)), (other, (late, early))):
        for retirement in order:
            membership.retire(retirement)

    assert one.retired["d"].adopter == other.retired["d"].adopter == "a"
    assert one.retired["d"].sealed == {Origin("d", 1): 9, Origin("d", 2): 1}
    assert one.retired["d"].heard_us == 2, "all that the later one covers may have been accepted until then"
    assert one.adopted_by("a") == ["d"] and one.adopted_by("b") == []


def test_what_a_retired_adopter_has_not_adopted_is_for_its_own_adopter() -> None:
    membership = Membership("b", listing("abcd"))

    membership.retire(Retirement(node="d", adopter="c"))
    assert membership.adopted_by("c") == ["d"]
    membership.retire(Retirement(node="c", adopter="b"))

    assert membership.adopted_by("b") == ["c", "d"]
    assert membership.adopted_by("c") == []


def test_two_that_have_retired_each_other_have_no_adopter() -> None:
    membership = Membership("a", listing("abcd"))

    membership.retire(Retirement(node="d", adopter="c"))
    membership.retire(Retirement(node="c", adopter="d"))

    assert not any(membership.adopted_by(node) for node in "abcd")


def says(name: str, adopter: str = "b") -> Retirement:
    return Retirement(node=name, adopter=adopter)


def decided(membership: Membership) -> set[str]:
    return {retirement.node for retirement in membership.decided()}


def test_a_retirement_is_news_once() -> None:
    gone = says("d")
    membership = Membership("a", listing("abcd"))

    membership.hear("b", told("abcd", retired=(gone,)))
    membership.hear("c", told("abcd", retired=(gone,)))
    assert decided(membership) == {"d"}
    membership.retire(gone)
    assert decided(membership) == set()


@pytest.mark.parametrize(("names", "peers_needed"), [("ab", 1), ("abc", 2), ("abcd", 2), ("abcde", 3), ("abcdefgh", 4)])
def test_a_node_obeys_that_it_is_retired_when_a_majority_of_the_others_says_so(names: str, peers_needed: int) -> None:
    membership = Membership("a", listing(names))

    heard: list[bool] = []
    for peer in names[1 : peers_needed + 1]:
        heard.append(bool(decided(membership)))
        membership.hear(peer, told(names, retired=(says("a"),)))
        membership.agree({"a"})  # It has no say in it.

    assert heard == [False] * peers_needed
    assert decided(membership) == {"a"}


def test_what_one_peer_says_of_a_node_counts_once_a_majority_agrees() -> None:
    membership = Membership("a", listing("abcde"))

    membership.hear("b", told("abcde", retired=(says("e"),)))
    assert decided(membership) == set()
    assert not membership.standing.retired
    assert membership.agree({"e", "d"})
    assert membership.standing.retired == (says("e"),)
    assert decided(membership) == set()  # two of four
    membership.hear("c", told("abcde", retired=(says("e"),)))

    assert decided(membership) == {"e"}


def test_a_node_that_came_back_before_it_was_decided_is_agreed_to_no_more() -> None:
    membership = Membership("a", listing("abcde"))
    membership.hear("b", told("abcde", retired=(says("e"),)))
    membership.agree({"e"})

    assert membership.agree(set())

    assert not membership.standing.retired


def test_what_is_left_of_a_lost_majority_decides_by_what_all_of_it_has_seen() -> None:
    membership = Membership("a", listing("abcde"))
    membership.hear("b", told("abcde", retired=(says("c"), says("d"), says("e"))))

    membership.agree({"c"})
    assert decided(membership) == set()
    membership.agree({"c", "d", "e"})

    assert decided(membership) == {"c", "d", "e"}


def test_a_retired_node_that_no_list_names_is_taken_from_one_peer() -> None:
    """It ends no member, and its records have to be welcome."""
    membership = Membership("a", listing("abc"))

    membership.hear("b", told("abc", retired=(says("old"),)))

    assert decided(membership) == {"old"}


@pytest.mark.parametrize("adopter", ["", "aa", "d", "c"])
def test_one_peer_gives_a_retired_node_no_adopter_that_is_no_member(adopter: str) -> None:
    """Its messages would be served by no node, for good. `c` and `d` are retired."""
    membership = Membership("a", listing("abcdef"), retired=[says("c", "d"), says("d", "e")])

    membership.hear("b", told("abcdef", retired=(says("c", adopter), says("d", adopter), says("old", "none"))))
    membership.agree({"c", "d", "old"})

    assert membership.decided() == []
    membership.hear("b", told("abcdef", retired=(says("d", "b"),)))
    assert membership.decided() == [says("d", "b")]


@pytest.mark.parametrize("adopter", ["", "d"])
def test_a_vote_for_an_adopter_that_is_no_member_does_not_count(adopter: str) -> None:
    membership = Membership("a", listing("abcd"))
    membership.hear("b", told("abcd", retired=(says("d", adopter),)))

    assert not membership.agree({"d"})
    assert membership.decided() == []
    membership.hear("c", told("abcd", retired=(says("d", "c"),)))
    membership.agree({"d"})

    assert membership.decided() == [says("d", "c")]


def test_a_node_that_was_away_takes_a_retired_adopter_once_it_knows_the_heir_of_that() -> None:
    membership = Membership("a", listing("ab"))
    membership.hear("b", told("ab", retired=(says("c", "d"), says("d", "b"))))

    for node in ("d", "c"):
        (one,) = membership.decided()
        assert one.node == node and membership.retire(one)

    assert membership.adopted_by("b") == ["c", "d"]


def test_a_disk_that_has_forgotten_something_learns_again() -> None:
    membership = Membership("a", listing("abc"))
    membership.caught_up_with("b", has_a_past=False)

    membership.forgets()

    assert not membership.may_vote
    assert membership.must_reconnect("b")
    membership.caught_up_with("b", has_a_past=False)
    assert not membership.has_learnt
    membership.meets("b")
    membership.caught_up_with("b", has_a_past=False)
    membership.caught_up_with("c", has_a_past=False)
    assert membership.has_learnt


def test_one_peer_names_no_more_retired_nodes_than_this_node_can_report() -> None:
    members = Membership("a", listing("abc"))
    for first in range(0, 3 * NAMES_MAX, NAMES_MAX):
        names = [f"x{number}" for number in range(first, first + NAMES_MAX)]
        members.hear("b", told("abc", retired=tuple(Retirement(node=name, adopter="b") for name in names)))
        members.agree(names)
        for retirement in members.decided():
            members.retire(retirement)
    members.hear("b", told("abc", retired=(Retirement(node="c", adopter="b"),)))
    members.agree("c")

    (decided,) = members.decided()
    assert members.retire(decided) and "c" in members.retired
    assert len(members.standing.retired) <= NAMES_MAX


def test_a_learner_has_learnt_enough_when_the_one_that_it_had_not_met_is_retired() -> None:
    membership = Membership("a", listing("abc"), is_learner=True)
    membership.caught_up_with("b", has_a_past=False)
    assert not membership.has_learnt

    membership.retire(Retirement(node="c", adopter="b"))

    assert membership.has_learnt


def test_a_retirement_survives_the_catalog() -> None:
    retirement = Retirement(node="c", adopter="a", sealed={Origin("c", (1 << 64) - 1): 7}, heard_us=9_000_000)

    facts = {name: text for name, text in retirement_fact(retirement).items() if text is not None}
    assert retirements_of({**facts, "learner": "yes"}) == [retirement]
    assert [one.heard_us for one in retirements_of(facts)] == [9_000_000]
    assert [one.heard_us for one in retirements_of({"retired/d": '{"adopter":"a","sealed":{}}'})] == [0]


def test_a_name_that_no_list_has_any_more_is_forgotten_though_two_have_sent_it_each_other() -> None:
    nodes = {name: Membership(name, listing("abc")) for name in "abc"}

    def tell(who: str, to: str) -> bool:
        before = nodes[to].standing
        nodes[to].hear(who, nodes[who].standing)
        return nodes[to].standing != before

    def talk() -> None:
        for _ in range(100):
            if not any([tell(who, to) for who in "abc" for to in "abc" if who != to]):
                return
        raise AssertionError("they never end telling each other")

    nodes["c"].take_up(listing("abcd", 2))
    talk()
    assert all("d" in node.origins_known for node in nodes.values())
    nodes["c"].take_up(listing("abc", 3))
    talk()
    assert not any("d" in node.origins_known for node in nodes.values())


def test_a_name_comes_through_a_whole_line_of_nodes() -> None:
    names = "abcdefgh"
    nodes = [Membership(name, listing(names)) for name in names]
    nodes[0].take_up(listing(names + "x", 2))

    for before, after in pairwise(nodes):
        after.hear(before.node, before.standing)

    assert "x" in nodes[-1].origins_known


def without(names: str, missing: str, version: int = 1) -> Listing:
    return Listing(version, frozenset(names), frozenset(missing))


def test_a_node_without_a_disk_is_in_no_majority_and_no_copy() -> None:
    a = Membership("a", without("abx", "x"))

    assert a.peers == ["b", "x"] and a.voting_peers == ["b"]
    assert a.members_fewest == 2
    assert a.is_majority("ab") and not a.is_majority("ax") and not a.is_majority("a")
    assert a.counts("b") and not a.counts("x")
    a.hear("x", told("abx", learner=False))
    assert not a.counts("x") and a.lists == [frozenset("ab")]


def test_a_node_without_a_disk_learns_and_never_counts() -> None:
    x = Membership("x", without("abcx", "x"), is_learner=True)
    x.caught_up_with("a", has_a_past=False)
    assert not x.has_learnt

    x.caught_up_with("b", has_a_past=False)
    assert x.has_learnt
    x.learnt()

    assert not x.is_learner and not x.may_vote and not x.has_disk
    assert x.standing.is_learner  # Peers that know no better must not count it either.


def test_a_disk_that_began_empty_learns_nothing_from_nodes_without_disks() -> None:
    a = Membership("a", without("abcx", "x"), is_learner=True)

    a.caught_up_with("x", has_a_past=False)
    a.caught_up_with("b", has_a_past=False)
    assert not a.has_learnt
    a.caught_up_with("c", has_a_past=False)
    assert a.has_learnt

    assert not Membership("a", without("ax", "x"), is_learner=True).is_learner


def test_until_all_have_the_file_a_new_node_without_a_disk_is_missing_in_majorities() -> None:
    late, early = Membership("a", listing("abc")), Membership("b", without("abcx", "x", 2))
    late.hear("b", early.standing)
    early.hear("a", late.standing)

    assert late.is_majority("abc") and not late.is_majority("ab") and not late.is_majority("ax")
    assert early.is_majority("ab") and not early.is_majority("ax")


def test_a_node_without_a_disk_is_retired_by_a_majority_of_the_others_like_any_other() -> None:
    a = Membership("a", without("abcx", "x"))
    leaving = Retirement(node="x", adopter="b")

    a.hear("b", told("abcx", retired=(leaving,)))
    assert a.decided() == []
    a.agree({"x"})

    assert a.decided() == [leaving]
