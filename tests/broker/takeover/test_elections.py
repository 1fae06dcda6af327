"""What one node decides about terms of owners, without a node: frames, records, conditions and hand-offs as values."""

from collections.abc import Collection, Mapping
from typing import TypeVar

import pytest

from qmq.broker.takeover.campaigns import POLLS, NodeView
from qmq.broker.takeover.election_effects import (
    BeginSync,
    ClearCondition,
    ContinueService,
    ElectionEffect,
    EndSync,
    HandOff,
    RaiseCondition,
    RecordTerm,
    RecordVote,
    ReportEvent,
    RequestRelease,
    RequestVote,
    ReturnMessages,
    SchedulePoll,
    SendHeartbeat,
)
from qmq.broker.takeover.elections import Elections
from qmq.broker.takeover.leases import LEASE, PATIENCE, Beat, Bid, Ownership, Term
from qmq.broker.takeover.owner_states import takeover_statistics
from qmq.model.dots import Dot, Origin
from qmq.model.members import Listing, Membership

AFTER = 10.0
LATE = 25.0
"""Long after the last heartbeat of `a`, at 10: it is the turn of `b`."""
OF_A, OF_B, OF_C = Origin("a", 1), Origin("b", 2), Origin("c", 3)

T = TypeVar("T")


def elections(node: str = "b", *, members: str = "abc", is_wanted: bool = True) -> Elections:
    membership = Membership(node, Listing(1, frozenset(members)))
    rules = Ownership(node, members, AFTER, 0.0, is_majority=membership.is_majority)
    return Elections(rules, membership, is_wanted=is_wanted, draw=lambda: 0.5)


def view(*serves: str, syncs: Collection[str] = (), may_serve_more: bool = True) -> NodeView:
    return NodeView(serves, syncs, may_serve_more)


def of_kind(kind: type[T], effects: Collection[ElectionEffect]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def echoed(
    node: Elections,
    peer: Origin,
    now: float,
    *,
    claims: Mapping[str, int] | None = None,
    promises: Mapping[str, int] | None = None,
    asks_echo: bool = False,
) -> Beat | None:
    """`peer` has heard everything that `node` has sent by `now`. Returns the response."""
    stamp_us = node.rules.beat(now).stamp_us
    claims = {peer.node: 0} if claims is None else claims
    beat = Beat(round(now * 1e6), stamp_us, asks_echo, True, claims, promises or {})
    return node.heartbeat_received(peer, beat, now)


def missing_a() -> Elections:
    """Node `b` at LATE, in contact with `c`; the last heartbeat of `a` came at 10."""
    node = elections()
    node.poll(1.0, view("b"))
    for peer in (OF_A, OF_C):
        echoed(node, peer, 10.0)
    node.poll(10.0, view("b"))
    echoed(node, OF_C, LATE)
    return node


def campaigning() -> Elections:
    node = missing_a()
    node.poll(LATE, view("b"))
    return node


def serving_a(term: int = 1) -> Elections:
    node = campaigning()
    for voter in "bc":
        node.vote_received(voter, "a", term, {}, LATE)
    node.sync_done("a", term)
    return node


# Heartbeats


def test_heartbeat_goes_to_each_peer_at_each_tenth_of_the_time_and_when_the_state_changes() -> None:
    node = elections()

    assert [one.peer for one in of_kind(SendHeartbeat, node.poll(1.0, view("b")))] == ["a", "c"]
    assert node.poll(1.5, view("b")) == []
    assert len(node.poll(1.0 + AFTER / POLLS, view("b"))) == 2
    echoed(node, OF_C, 2.1)
    assert {one.beat.claims["b"] for one in of_kind(SendHeartbeat, node.poll(2.1, view("b")))} == {0}


def test_heartbeat_wants_an_echo_only_with_news_or_when_the_last_echo_is_old() -> None:
    node = elections()

    def wanted(now: float) -> dict[str, bool]:
        return {one.peer: one.beat.asks_echo for one in of_kind(SendHeartbeat, node.poll(now, view("b")))}

    assert wanted(1.0) == {"a": True, "c": True}
    echoed(node, OF_A, 1.0)
    echoed(node, OF_C, 1.0)
    assert wanted(1.5) == {"a": True, "c": True}  # in contact, which is news
    assert wanted(2.5) == {"a": False, "c": False}
    echoed(node, OF_A, 2.5)
    assert wanted(3.6) == {"a": False, "c": True}


def test_heartbeat_carries_the_newest_stamp_of_the_present_incarnation_of_its_peer() -> None:
    node = elections()
    echoed(node, OF_A, 5.0)
    echoed(node, OF_A, 4.0)
    echoed(node, OF_C, 4.0)
    echoed(node, Origin("c", 9), 3.0)

    echoes = {one.peer: one.beat.echo_us for one in of_kind(SendHeartbeat, node.poll(6.0, view("b")))}

    assert echoes == {"a": 5_000_000, "c": 3_000_000}


def test_heartbeat_that_wants_no_echo_gets_none() -> None:
    node = elections()

    response = echoed(node, OF_A, 5.0, asks_echo=True)

    assert response is not None
    assert (response.echo_us, response.asks_echo) == (5_000_000, False)
    assert echoed(node, OF_A, 6.0) is None


def test_nothing_is_due_in_a_mesh_without_a_majority_after_the_loss_of_a_node() -> None:
    node = elections(members="ab")

    assert node.poll(1.0, view("b")) == []
    assert node.vote_requested("a", Bid("b", 1, "a"), LATE) == []
    assert node.may_borrow("a", {}, 0, {"a"}, LATE) == ({"a": True}, [])
    assert node.lease_end(["b"], LATE) == float("inf")


# Campaigns


def test_votes_are_requested_of_all_peers_and_then_of_those_that_have_not_voted() -> None:
    node = missing_a()
    bid = Bid("a", 1, "b")

    effects = node.poll(LATE, view("b"))
    node.vote_received("a", "a", 2, {}, LATE)
    again = node.poll(LATE + AFTER / POLLS, view("b"))
    node.vote_received("c", "a", 1, {}, LATE)
    early = node.poll(LATE + 1.5 * AFTER / POLLS, view("b"))
    node.campaigns.by_owner["a"].until = LATE + AFTER
    last = node.poll(LATE + 2 * AFTER / POLLS, view("b"))

    assert of_kind(RequestVote, effects) == [RequestVote("a", bid), RequestVote("c", bid)]
    assert of_kind(RecordVote, effects) == [RecordVote(bid)]
    assert of_kind(RequestVote, again) == [RequestVote("a", bid), RequestVote("c", bid)]
    assert of_kind(RequestVote, early) == []
    assert of_kind(RequestVote, last) == [RequestVote("a", bid)]


def test_promise_is_sent_in_the_poll_that_makes_it() -> None:
    node = missing_a()

    effects = node.poll(LATE, view("b"))

    (last,) = {one.beat.promises["a"] for one in of_kind(SendHeartbeat, effects[-2:])}
    assert last == 1


def test_campaign_is_given_up_and_begun_again_after_a_random_time() -> None:
    node = campaigning()
    over = LATE + PATIENCE * AFTER
    again = over + PATIENCE * AFTER * 0.5

    def requests(now: float) -> list[RequestVote]:
        echoed(node, OF_C, now)
        return of_kind(RequestVote, node.poll(now, view("b")))

    assert requests(over) == []
    assert requests(again - 0.01) == []
    assert requests(again)[0].bid == Bid("a", 2, "b")


@pytest.mark.parametrize(
    "seen",
    [view("b", may_serve_more=False), view("b", syncs=["a"])],
    ids=["records are missing", "the sync is under way"],
)
def test_no_votes_are_requested_where_they_would_be_of_no_use(seen: NodeView) -> None:
    assert of_kind(RequestVote, missing_a().poll(LATE, seen)) == []


def test_node_without_takeover_requests_no_votes_for_others() -> None:
    node = missing_a()
    node.campaigns._is_wanted = False

    assert of_kind(RequestVote, node.poll(LATE, view("b"))) == []


def test_majority_begins_the_sync_of_what_its_voters_had_and_announces_the_claim() -> None:
    node = campaigning()

    assert node.vote_received("b", "a", 1, {}, LATE) == []
    effects = node.vote_received("c", "a", 1, {OF_A: 7}, LATE)

    assert effects[:2] == [RecordTerm("a", Term(1, "b")), BeginSync("a", 1, {OF_A: 7}, {})]
    assert [one.beat.claims["a"] for one in of_kind(SendHeartbeat, effects)] == [1, 1]
    assert node.obeys("a", 1)
    assert node.claims("a", 1)
    assert node.obey_terms() == []


def test_vote_of_another_term_counts_nothing() -> None:
    node = campaigning()

    for voter in "abc":
        assert node.vote_received(voter, "a", 2, {}, LATE) == []


@pytest.mark.parametrize("has_lease", [True, False])
def test_server_that_confirms_its_claim_goes_on_serving_if_its_lease_has_held(has_lease: bool) -> None:
    node = serving_a()
    now = LATE + 0.5
    if has_lease:
        echoed(node, OF_A, now, claims={})
    echoed(node, OF_C, now, promises={"a": 4})

    node.poll(now, view("a", "b"))
    node.vote_received("b", "a", 5, {}, now)
    effects = node.vote_received("c", "a", 5, {}, now)

    assert (ContinueService("a") in effects, len(of_kind(BeginSync, effects))) == (has_lease, not has_lease)
    assert node.served == ({"a": 5} if has_lease else {})


def test_failed_sync_leaves_the_owner_to_others_for_a_while() -> None:
    node = campaigning()
    for voter in "bc":
        node.vote_received(voter, "a", 1, {}, LATE)

    assert node.sync_failed("a", 1, LATE)
    assert not node.sync_failed("a", 1, LATE)

    for now, requested in ((LATE + 2 * AFTER - 0.01, False), (LATE + 2 * AFTER, True)):
        echoed(node, OF_C, now)
        assert bool(of_kind(RequestVote, node.poll(now, view("b")))) == requested


# Votes


def test_vote_is_recorded_once_in_a_term_and_only_for_the_node_that_requests_it() -> None:
    node = missing_a()
    bid = Bid("a", 1, "c")

    assert node.vote_requested("a", bid, LATE) == []
    assert node.vote_requested("c", bid, LATE) == [RecordVote(bid)]
    assert node.vote_requested("c", bid, LATE) == []


def test_promise_of_an_earlier_incarnation_is_kept() -> None:
    node = missing_a()

    assert node.term_recorded("a", Term(3, "a"), is_vote=True) == []

    assert node.vote_requested("c", Bid("a", 3, "c"), LATE) == []
    assert node.vote_requested("c", Bid("a", 4, "c"), LATE) != []


# Terms of other nodes


def test_recorded_term_is_obeyed_in_the_next_poll() -> None:
    node = serving_a()

    assert node.term_recorded("a", Term(2, "c"), is_vote=False) == [SchedulePoll()]
    assert node.term_recorded("a", Term(2, "c"), is_vote=False) == []
    effects = node.obey_terms()

    cleared = ClearCondition("takeover", "this node serves the messages of a, in term 1")
    assert effects == [cleared, HandOff("a", "c", 2)]
    assert node.served == {}


def test_node_whose_messages_another_serves_hands_them_off_with_a_condition() -> None:
    node = elections()

    node.term_recorded("b", Term(1, "c"), is_vote=False)

    condition = RaiseCondition("taken-over", "c serves the messages of this node, in term 1")
    assert node.obey_terms() == [HandOff("b", "c", 1), condition]


def test_takeover_stays_active_until_what_was_taken_over_is_returned() -> None:
    node = elections(is_wanted=False)
    assert not node.is_active

    node.term_recorded("a", Term(1, "c"), is_vote=False)
    node.obey_terms()
    assert node.is_active

    node.term_recorded("a", Term(2, "a"), is_vote=False)
    node.obey_terms()
    assert not node.is_active


def test_campaign_ends_when_another_node_wins_the_owner() -> None:
    node = campaigning()

    node.term_recorded("a", Term(1, "c"), is_vote=False)

    assert node.obey_terms() == [HandOff("a", "c", 1)]
    for voter in "bc":
        assert node.vote_received(voter, "a", 1, {}, LATE) == []


def test_condition_is_cleared_when_the_owner_serves_its_messages_again() -> None:
    node = elections()
    node.term_recorded("b", Term(1, "c"), is_vote=False)
    node.obey_terms()

    effects = node.sync_done("b", 2)

    assert effects == [
        ClearCondition("taken-over", "c serves the messages of this node, in term 1"),
        ReportEvent("returned", "this node serves its own messages again, in term 2"),
    ]
    assert node.sync_done("b", 2) == effects[1:]


def test_own_term_of_an_earlier_incarnation_is_served_in() -> None:
    node = elections()
    node.term_recorded("b", Term(4, "b"), is_vote=False)

    assert node.obey_terms() == [EndSync("b")]
    assert node.served == {"b": 4}


def test_owner_that_this_node_may_not_claim_any_more_is_handed_off_without_a_report() -> None:
    node = serving_a()
    node.rules.was_away(LATE)

    assert node.obey_terms()[-1] == HandOff("a", "a", 0)


# Loans


def test_loan_of_an_earlier_term_is_stale_and_one_of_a_later_term_is_obeyed_first() -> None:
    node = elections()
    fresh_us = round(LATE * 1e6)

    assert node.may_borrow("c", {"a": 2}, fresh_us, {"a"}, LATE) == (
        {"a": True},
        [SchedulePoll(), HandOff("a", "c", 2)],
    )
    assert node.may_borrow("a", {"a": 1}, fresh_us, {"a"}, LATE) == ({"a": None}, [])
    assert node.may_borrow("a", {"a": 2}, fresh_us, {"a"}, LATE) == ({"a": None}, [])


def test_loan_that_relies_on_an_old_echo_is_refused_with_a_heartbeat() -> None:
    node = elections()
    limit = LATE - AFTER * (1 - LEASE)

    assert node.may_borrow("a", {}, round(limit * 1e6) + 1, {"a"}, LATE) == ({"a": True}, [])
    may, (heartbeat,) = node.may_borrow("a", {}, round(limit * 1e6) - 1, {"a"}, LATE)

    assert may == {"a": False}
    assert isinstance(heartbeat, SendHeartbeat)
    assert heartbeat.peer == "a"


# Returns


def test_owner_that_is_back_requests_its_messages_of_their_server_until_they_are_released() -> None:
    node = elections()
    node.poll(1.0, view())
    echoed(node, OF_C, 1.0, claims={"b": 3})

    def requests(now: float) -> list[RequestRelease]:
        return of_kind(RequestRelease, node.poll(now, view()))

    assert requests(1.6) == [RequestRelease("c", 3)]
    assert requests(1.7) == []
    assert requests(1.6 + AFTER / POLLS) == [RequestRelease("c", 3)]
    node.released("c", "b", 3, {}, {})
    assert requests(1.6 + 2 * AFTER / POLLS) == []


def test_server_returns_messages_to_their_owner_alone_and_in_no_later_term() -> None:
    node = serving_a()
    cleared = ClearCondition("takeover", "this node serves the messages of a, in term 1")

    assert node.release_requested("c", "a", 1) == []
    assert node.release_requested("a", "a", 0) == []
    assert node.release_requested("a", "a", 1) == [cleared, ReturnMessages(HandOff("a", "a", 0), 1, True)]
    assert node.release_requested("a", "a", 1) == [ReturnMessages(HandOff("a", "a", 0), 1, False)]
    assert node.served == {}


def test_release_in_the_middle_of_a_campaign_says_which_messages_are_with_consumers() -> None:
    node = elections("a")
    lent = {"c": [Dot(OF_A, 1)]}
    node.poll(1.0, view())
    for peer in (OF_B, OF_C):
        echoed(node, peer, 10.0)
    node.term_recorded("a", Term(6, "b"), is_vote=False)
    node.obey_terms()
    echoed(node, OF_C, LATE)
    assert of_kind(RequestVote, node.poll(LATE, view()))

    node.released("b", "a", 6, {OF_B: 4}, lent)
    node.released("b", "c", 6, {OF_B: 9}, {})
    node.vote_received("b", "a", 7, {}, LATE)
    effects = node.vote_received("c", "a", 7, {OF_C: 5}, LATE)

    assert of_kind(BeginSync, effects) == [BeginSync("a", 7, {OF_B: 4, OF_C: 5}, lent)]


def test_release_before_a_campaign_lets_it_begin_at_once() -> None:
    node = elections("a")
    node.poll(1.0, view())
    node.term_recorded("a", Term(6, "b"), is_vote=False)
    node.obey_terms()
    echoed(node, OF_B, LATE, claims={"a": 6})
    echoed(node, OF_C, LATE)
    assert of_kind(RequestVote, node.poll(LATE, view())) == []

    node.released("b", "a", 6, {OF_B: 4}, {})
    bid = Bid("a", 7, "a", Term(6, "b"))

    assert of_kind(RequestVote, node.poll(LATE, view())) == [RequestVote("b", bid), RequestVote("c", bid)]
    node.vote_received("b", "a", 7, {}, LATE)
    assert of_kind(BeginSync, node.vote_received("c", "a", 7, {}, LATE)) == [BeginSync("a", 7, {OF_B: 4}, {})]


# Statistics


def test_statistics_show_the_state_of_each_owner() -> None:
    node = campaigning()

    def states(seen: NodeView, *, is_held: bool = False) -> list[str]:
        return [one.place for one in takeover_statistics(node, LATE, seen, is_held=is_held).owners]

    assert states(view("b")) == ["bidding", "serving", "others"]
    assert states(view("b"), is_held=True) == ["bidding", "waiting", "others"]
    assert states(view("b", "c", syncs=["a"])) == ["arriving", "serving", "waiting"]
