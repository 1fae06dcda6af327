"""The rules for which node serves which owner's messages: single cases first, then every course in a small mesh."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from qmq.broker.takeover import leases
from qmq.broker.takeover.leases import LEASE, TERM_STEP_MAX, Beat, Bid, Ownership, Term
from qmq.broker.takeover.owner_states import page
from qmq.broker.takeover.quorum_acks import settled_through
from tests.broker import ownership_model as model

AFTER = 10.0
NODES = ("a", "b", "c")


def mesh(now: float = 0.0, **known: object) -> dict[str, Ownership]:
    return {name: Ownership(name, NODES, AFTER, now, **known) for name in NODES}  # type: ignore[arg-type]


def exchange(nodes: dict[str, Ownership], now: float, *pairs: str) -> None:
    """Beats with their echoes, both ways, until everybody has heard what follows from them."""
    for _ in range(2):
        for pair in pairs:
            for here, there in ((pair[0], pair[1]), (pair[1], pair[0])):
                beat = nodes[here].beat(now)
                nodes[there].hear(here, beat, now)
                nodes[here].hear(there, nodes[there].beat(now, echo_us=beat.stamp_us, asks_echo=False), now)
        for node in nodes.values():
            node.claim_own(now)


def silent_a(now: float = 25.0) -> dict[str, Ownership]:
    """A mesh whose node `a` was last heard at 10; it is `now`."""
    nodes = mesh()
    exchange(nodes, 10.0, "ab", "ac", "bc")
    exchange(nodes, now, "bc")
    return nodes


def test_a_node_hands_out_its_own_once_a_majority_has_echoed_that_it_claims_to() -> None:
    nodes = mesh()
    assert not nodes["a"].leads("a", 0.0)

    exchange(nodes, 1.0, "ab")

    assert nodes["a"].leads("a", 1.0)
    assert not nodes["c"].leads("c", 1.0)


def test_a_lease_ends_two_thirds_of_the_time_after_the_beat_that_was_echoed() -> None:
    nodes = mesh()
    exchange(nodes, 1.0, "ab", "ac")

    assert nodes["a"].lease_until("a", 1.0) == pytest.approx(1.0 + LEASE * AFTER, abs=0.001)


def test_a_claim_without_contact_ends_with_its_lease_and_the_next_beat_says_so() -> None:
    nodes = mesh()
    exchange(nodes, 1.0, "ab", "ac")
    a = nodes["a"]
    assert set(a.claims) == {"a"}
    end = 1.0 + LEASE * AFTER

    a.claim_own(end - 0.1)
    assert set(a.claims) == {"a"}, "it is still borne"
    a.claim_own(end + 0.1)

    assert not a.claims
    assert not a.beat(end + 0.1).claims


def test_a_claim_in_contact_stays_however_old_it_is() -> None:
    nodes = mesh()
    for now in range(1, 40):
        exchange(nodes, float(now), "ab")

    assert set(nodes["a"].claims) == {"a"}
    assert nodes["a"].beat(39.5).claims == {"a": 0}


def test_what_a_voter_has_promised_binds_its_next_incarnation() -> None:
    again = Ownership("c", NODES, AFTER, 20.0, earlier_after=60.0)

    assert not again.vote(Bid("a", 1, "b"), 79.9)
    assert again.vote(Bid("a", 1, "b"), 80.1)


def test_a_node_bound_by_its_promises_asks_for_no_votes_in_vain() -> None:
    nodes = {name: Ownership(name, NODES, AFTER, 20.0, earlier_after=60.0) for name in NODES}
    exchange(nodes, 25.0, "bc")
    exchange(nodes, 79.9, "bc")
    assert nodes["b"].bid_for("a", 79.9) is None

    exchange(nodes, 80.1, "bc")

    assert nodes["b"].bid_for("a", 80.1) == Bid("a", 1, "b")


def test_hearing_others_without_being_heard_is_no_lease() -> None:
    nodes = mesh()
    for name in ("b", "c"):
        nodes["a"].hear(name, nodes[name].beat(1.0), 1.0)

    assert not nodes["a"].in_contact(1.0)


def test_no_node_votes_while_the_owner_is_heard() -> None:
    nodes = mesh()
    exchange(nodes, 15.0, "ab", "ac", "bc")

    assert not nodes["c"].vote(Bid("a", 1, "b"), 15.0 + AFTER - 0.1)
    assert nodes["c"].vote(Bid("a", 1, "b"), 15.0 + AFTER + 0.1)


def test_a_voter_that_has_just_started_or_was_away_does_not_know_whose_claims_it_has_heard() -> None:
    nodes = silent_a()
    fresh = Ownership("c", NODES, AFTER, 20.0)
    nodes["b"].was_away(24.0)

    assert not fresh.vote(Bid("a", 1, "b"), 25.0)
    assert not nodes["b"].vote(Bid("a", 1, "c"), 25.0)
    assert fresh.vote(Bid("a", 1, "b"), 31.0)


def test_a_voter_votes_once_in_a_term_also_after_a_restart() -> None:
    nodes = silent_a()
    assert nodes["c"].vote(Bid("a", 1, "b"), 25.0)
    again = Ownership("c", NODES, AFTER, 0.0, promised=nodes["c"].promised)

    assert not again.vote(Bid("a", 1, "c"), 25.0)
    assert again.vote(Bid("a", 2, "c"), 25.0)


def test_candidates_take_turns_in_the_order_of_names_after_the_owner() -> None:
    nodes = silent_a(20.5)

    assert nodes["b"].bid_for("a", 20.5) == Bid("a", 1, "b")
    assert nodes["c"].bid_for("a", 20.5) is None
    assert nodes["c"].bid_for("a", 22.5) is not None


def taken_over() -> dict[str, Ownership]:
    """Node `b` serves the messages of `a`; it is 25."""
    nodes = silent_a()
    bid = nodes["b"].bid_for("a", 25.0)
    assert bid is not None and nodes["c"].vote(bid, 25.0) and nodes["b"].vote(bid, 25.0)
    nodes["b"].won(bid, 25.0)
    exchange(nodes, 25.0, "bc")
    return nodes


def test_a_node_with_the_votes_of_a_majority_serves_in_the_new_term() -> None:
    nodes = taken_over()

    assert nodes["b"].leads("a", 25.0)
    assert nodes["c"].term_of("a") == Term(1, "b")


def test_echoes_of_a_node_that_has_promised_a_later_term_support_no_lease() -> None:
    nodes = taken_over()

    exchange(nodes, 26.0, "ac")

    assert nodes["a"].in_contact(26.0)
    assert not nodes["a"].leads("a", 26.0)


def test_an_owner_that_is_back_serves_again_after_the_other_has_released() -> None:
    nodes = taken_over()
    exchange(nodes, 27.0, "ab", "ac", "bc")
    a, b, c = nodes.values()
    assert a.bid_for("a", 27.0) is None
    served = a.server_heard("a", 27.0)
    assert served == Term(1, "b")

    assert b.release("a", 1)
    bid = a.bid_for("a", 27.0, served)

    assert bid == Bid("a", 2, "a", Term(1, "b"))
    assert b.vote(bid, 27.0) and c.vote(bid, 27.0)
    a.won(bid, 27.0)
    exchange(nodes, 27.1, "ab", "ac")
    assert a.leads("a", 27.1)
    assert not b.leads("a", 27.1)


def test_own_messages_that_did_not_come_here_need_another_vote() -> None:
    nodes = mesh()
    for node in nodes.values():
        node.terms["a"] = Term(2, "a")
    exchange(nodes, 10.0, "ab", "ac", "bc")
    a = nodes["a"]
    assert a.release("a", 2)
    a.has_own = False

    assert not a.claim_own(15.0)
    assert a.bid_for("a", 15.0) == Bid("a", 3, "a")
    assert nodes["b"].vote(Bid("a", 3, "a"), 15.0)


def test_a_claim_is_confirmed_where_a_peer_has_promised_more() -> None:
    nodes = mesh()
    nodes["c"].promised["a"] = Term(4, "b")
    exchange(nodes, 15.0, "ab", "ac")

    assert nodes["a"].leads("a", 15.0)
    assert nodes["a"].bid_for("a", 15.0) == Bid("a", 5, "a")


def test_a_learner_neither_votes_nor_echoes_nor_claims() -> None:
    nodes = mesh()
    nodes["b"].learner = True
    exchange(nodes, 15.0, "ab")

    assert not nodes["a"].in_contact(15.0)
    assert not nodes["b"].vote(Bid("c", 1, "a"), 40.0)
    assert not nodes["b"].claim_own(15.0)


def test_a_stranger_is_not_heard_and_gets_no_vote() -> None:
    nodes = silent_a()

    nodes["b"].hear("x", Beat(1, 1, True, True, {"a": 9}, {}), 25.0)

    assert nodes["b"].term_of("a") == Term(0, "a")
    assert not nodes["b"].vote(Bid("a", 1, "x"), 25.0)
    assert not nodes["b"].vote(Bid("x", 1, "c"), 25.0)


def test_a_former_member_is_neither_asked_nor_taken_over() -> None:
    nodes = silent_a()
    nodes["b"].enrol(["b", "c"])

    assert not nodes["b"].vote(Bid("a", 1, "c"), 25.0)
    assert set(nodes["b"].peers) == {"c"}


LAST = (1 << 63) - 1
"""The highest term that a frame or a record can name."""


def lied_to() -> dict[str, Ownership]:
    """`d` has said in beats and in records that it serves what is of `a`, for ever, and has promised so."""
    nodes = {name: Ownership(name, "abcd", AFTER, 0.0) for name in "abc"}
    for node in nodes.values():
        node.hear("d", Beat(1, 0, False, True, {"a": LAST}, {"a": LAST}), 1.0)
        node.learn("a", Term(LAST, "d"))
    return nodes


def test_no_node_alone_can_name_a_last_term() -> None:
    nodes = lied_to()
    exchange(nodes, 15.0, "ab", "ac", "bc")

    assert nodes["a"].leads("a", 15.0)
    assert nodes["a"].bid_for("a", 15.0) is None  # nothing is to be confirmed
    assert all(node.term_of("a") == Term(0, "a") for node in nodes.values())


def test_others_can_take_over_what_a_liar_has_claimed_that_is_retired() -> None:
    nodes = lied_to()
    for node in nodes.values():
        node.enrol("abc")
    exchange(nodes, 10.0, "ab", "ac", "bc")
    exchange(nodes, 35.0, "bc")

    bid = nodes["b"].bid_for("a", 35.0)

    assert bid == Bid("a", 1, "b")
    assert nodes["c"].vote(bid, 35.0)


def test_a_term_on_the_disk_that_none_can_follow_does_not_count() -> None:
    node = Ownership("a", NODES, AFTER, 0.0, terms={"a": Term(LAST, "c"), "b": Term(TERM_STEP_MAX, "c")})

    assert node.term_of("a") == Term(0, "a")
    assert node.term_of("b") == Term(TERM_STEP_MAX, "c")
    assert node.learn("a", Term(1, "b"))


def promised_by(*promises: int) -> Ownership:
    """Node `b`, late enough to vote; these are the promises of `a`, `b` and `c` in terms of `a`."""
    nodes = mesh()
    for name, number in zip(NODES, promises, strict=True):
        nodes[name].promised["a"] = Term(number, "c")
    exchange(nodes, 10.0, "ab", "bc")
    return nodes["b"]


@pytest.mark.parametrize(("promises", "majority"), [((9, 3, 7), 7), ((LAST, 0, 0), 0), ((LAST, 0, 5), 5)])
def test_how_far_a_term_may_be_beyond_what_a_majority_has_promised(promises: tuple[int, ...], majority: int) -> None:
    believed, voted = majority + TERM_STEP_MAX, majority + 2 * TERM_STEP_MAX

    assert not promised_by(*promises).learn("a", Term(believed + 1, "c"))
    assert promised_by(*promises).learn("a", Term(believed, "c"))
    assert not promised_by(*promises).vote(Bid("a", voted + 1, "a"), 30.0)
    assert promised_by(*promises).vote(Bid("a", voted, "a"), 30.0)


def test_a_node_that_was_away_for_any_number_of_terms_hears_what_the_others_have_promised() -> None:
    far = 5 * TERM_STEP_MAX
    node = promised_by(far, 0, far)

    node.hear("c", Beat(99_000_000, 0, False, True, {"a": far}, {"a": far}), 30.0)

    assert node.term_of("a") == Term(far, "c")


def test_a_bid_goes_beyond_what_was_believed_and_stays_within_what_gets_votes() -> None:
    nodes = silent_a()
    nodes["c"].promised["a"] = Term(2 * TERM_STEP_MAX, "a")  # a liar has asked for that vote
    exchange(nodes, 25.5, "bc")

    assert nodes["b"].bid_for("a", 25.5) == Bid("a", 2 * TERM_STEP_MAX, "b")
    nodes["b"].promised["a"] = Term(2 * TERM_STEP_MAX, "b")  # in vain, but now a majority has promised so much
    assert nodes["b"].bid_for("a", 25.5) == Bid("a", 2 * TERM_STEP_MAX + 1, "b")


def test_the_page_shows_the_table_as_it_is() -> None:
    assert page() in (Path(__file__).parents[3] / "docs" / "takeover.md").read_text("utf-8")


# What can happen in a small world

STATES_MAX = 4000
"""Of worlds that are looked at only so far."""

ALL_MAX = 20_000
"""More than there are of those that are looked at to the end."""

WALKS = 100


def one_cut(make: model.Make = Ownership) -> model.World:
    """No messages, beats in step, and one cut of any node or link, both ways or one way, that heals at any moment."""
    return model.World(make, messages=(), crashes=0, term_max=2, in_step=True)


def one_crash(make: model.Make = Ownership) -> model.World:
    """The same, and instead of the cut one crash of any node, which starts again at any later moment."""
    return model.World(make, messages=(), cuts=0, term_max=2, in_step=True)


def silent_pair(make: model.Make = Ownership) -> model.World:
    """`a` and `b` are cut off from each other for so long that `b` begins to wonder."""
    environment = model.World(make)
    environment.cut, environment.cuts_left = model.OWNER_AND_B, 0
    for _ in range(4):
        environment.tick()
    return environment


def restarted_between(make: model.Make = Ownership) -> model.World:
    """The same, and the third node, which heard both of them, has just started again."""
    environment = silent_pair(make)
    environment.crash("c", make)
    environment.crashes_left = 0
    return environment


def served_by_b(make: model.Make = Ownership, environment: model.World | None = None) -> model.World:
    """`a` is cut off, and `b` has its votes."""
    environment = environment or model.World(make)
    environment.cut, environment.cuts_left = model.OWNER_ALONE, 0
    for _ in range(4):
        environment.tick()
    b = environment.members["b"]
    b.bid = b.rules.bid_for("a", environment.now)
    environment.vote("b", "b")
    environment.vote("b", "c")
    environment.tick()
    assert b.rules.leads(model.OWNER, environment.now)
    return environment


def back_again(make: model.Make = Ownership) -> model.World:
    """The cut is over, and `a` finds itself served by `b`."""
    environment = served_by_b(make)
    environment.cut = frozenset()
    return environment


def acked_at_a_while_b_serves(make: model.Make = Ownership) -> model.World:
    """A consumer of `a` settles what it has had for long; `c` hears of it after it has voted for `b`."""
    environment = model.World(make)
    environment.hand_out("a", "m", "a")
    environment = served_by_b(make, environment)
    environment.cut = frozenset()
    environment.settle("a", "m")
    environment.tell_settles("a", "c")
    return environment


def acked_at_c_while_a_has_forgotten(make: model.Make = Ownership) -> model.World:
    """`a` has started again and does not know who has what; then it is cut off."""
    environment = model.World(make)
    environment.hand_out("a", "m", "c")
    environment.crash("a", make)
    environment.crashes_left = 0
    environment.tick()
    environment.tick()
    assert environment.members["a"].can_serve(environment.now)
    environment.settle("c", "m")
    environment.cut, environment.cuts_left = model.OWNER_ALONE, 0
    return environment


def receipted_before_b_serves(make: model.Make = Ownership) -> model.World:
    """`b` was voted for by one who knows of a receipted ACK, and does not know of it yet."""
    environment = model.World(make)
    environment.hand_out("a", "m", "a")
    environment.settle("a", "m")
    environment.tell_settles("a", "c")
    environment.confirm("a", "c")
    assert environment.may_receipt("a", "m")
    environment.receipted |= {"m"}
    return served_by_b(make, environment)


def longer_at_the_owner(make: model.Make = Ownership) -> model.World:
    """The owner is being given a shorter time, or the others a longer one."""
    return model.World(make, {"a": model.LONGER})


def longer_elsewhere(make: model.Make = Ownership) -> model.World:
    """The other way round."""
    return model.World(make, {"b": model.LONGER, "c": model.LONGER})


def cut_off_with_the_longer_time(make: model.Make = Ownership) -> model.World:
    """The owner has the longer time, and was cut off for as long as the shorter one."""
    environment = longer_at_the_owner(make)
    environment.cut, environment.cuts_left = model.OWNER_ALONE, 0
    for _ in range(int(model.AFTER)):
        environment.tick()
    return environment


def shortened_while_cut_off(make: model.Make = Ownership) -> model.World:
    """The others have started again with a shorter time in the moment in which the owner was cut off; that is over."""
    environment = model.World(make, dict.fromkeys(NODES, model.LONGER))
    environment.cut, environment.cuts_left = model.OWNER_ALONE, 0
    for name in "bc":
        environment.crash(name, make, model.AFTER)
    for here, there in ("bc", "cb"):
        environment.tell(here, there)
        environment.look(here)
    for _ in range(int(model.AFTER)):
        environment.tick()
    return environment


STARTS = (
    model.World,
    silent_pair,
    restarted_between,
    served_by_b,
    back_again,
    acked_at_a_while_b_serves,
    acked_at_c_while_a_has_forgotten,
    receipted_before_b_serves,
    longer_at_the_owner,
    longer_elsewhere,
    cut_off_with_the_longer_time,
    shortened_while_cut_off,
)


@pytest.mark.parametrize("first", [one_cut, one_crash])
def test_two_nodes_never_serve_whatever_happens_with_one_fault(first: Callable[[], model.World]) -> None:
    assert 1000 < model.explore(first(), states_max=ALL_MAX) < ALL_MAX


@pytest.mark.parametrize("first", STARTS)
def test_nothing_forbidden_is_reached_soon(first: Callable[[], model.World]) -> None:
    model.explore(first(), states_max=STATES_MAX)


def test_long_histories_end_with_everything_settled_and_nothing_given_twice() -> None:
    for seed in range(WALKS):
        model.walk(seed)


@pytest.mark.parametrize("first", [longer_at_the_owner, longer_elsewhere])
def test_long_histories_while_the_time_differs_end_well_too(first: Callable[[], model.World]) -> None:
    for seed in range(WALKS // 2):
        model.walk(seed, first=first())


@pytest.mark.parametrize("first", [one_cut, one_crash])
def test_the_same_holds_where_each_second_term_is_too_far(
    first: Callable[[], model.World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "TERM_STEP_MAX", 1)

    assert 1000 < model.explore(first(), states_max=ALL_MAX) < ALL_MAX
    for seed in range(WALKS):
        model.walk(seed)


class NoFence(Ownership):
    """A lease leans on those who have promised a later term."""

    def lease_until(self, owner: str, now: float) -> float:
        for heard in self.peers.values():
            heard.promises = {}
        return super().lease_until(owner, now)


class OneWay(Ownership):
    """A lease leans on those who are heard."""

    def _echo_until(self, name: str, heard: object, after_us: int, now: float) -> float:
        return self.peers[name].at + self.after * LEASE


class MajorityInView(Ownership):
    """A candidate's word that the owner is silent is enough."""

    def _is_silent(self, owner: str, candidate: str, released: Term | None, now: float) -> bool:
        return self.node != candidate or super()._is_silent(owner, candidate, released, now)


class ForgetsVotes(Ownership):
    """Votes are not written down."""

    def _promise(self, owner: str) -> int:
        return 0


class Hasty(Ownership):
    """A voter votes as soon as it has started."""

    def may_vote(self, now: float) -> bool:
        return not self.learner


class LongLease(Ownership):
    """A lease lasts longer than a voter is silent."""

    def _echo_until(self, name: str, heard: object, after_us: int, now: float) -> float:
        return super()._echo_until(name, self.peers[name], after_us, now) + self.after


class ForgetsWhatItTold(Ownership):
    """A shorter time counts from the start on."""

    def __init__(self, node: str, members: Iterable[str], after_seconds: float, now: float, **known: object) -> None:
        super().__init__(node, members, after_seconds, now, **{**known, "earlier_after": 0.0})  # type: ignore[arg-type]


@pytest.mark.seeded_bug
@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (NoFence, back_again),
        (MajorityInView, silent_pair),
        (Hasty, restarted_between),
        (ForgetsWhatItTold, shortened_while_cut_off),
    ],
)
def test_a_rule_that_is_broken_is_found_breadth_first(
    plant: type[Ownership], first: Callable[[model.Make], model.World]
) -> None:
    with pytest.raises(model.Broken, match="two nodes"):
        model.explore(first(plant), plant, states_max=STATES_MAX)


@pytest.mark.seeded_bug
@pytest.mark.parametrize("plant", [OneWay, LongLease])
def test_a_rule_that_is_broken_is_found_among_all_that_one_cut_can_do(plant: type[Ownership]) -> None:
    with pytest.raises(model.Broken, match="two nodes"):
        model.explore(one_cut(plant), plant, states_max=ALL_MAX)


@pytest.mark.seeded_bug
@pytest.mark.parametrize(("plant", "first"), [(OneWay, 32), (ForgetsVotes, 168), (LongLease, 132)])
def test_a_rule_that_is_broken_is_found_by_walking(plant: type[Ownership], first: int) -> None:
    """`first` is the first seed from 0 on that finds it now, so that few are tried."""
    with pytest.raises(model.Broken):
        for seed in range(first, first + 4 * WALKS):
            model.walk(seed, plant)


@pytest.mark.seeded_bug
def test_serving_before_everything_is_known_that_voters_know_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def can_serve(member: model.Member, now: float) -> bool:
        return member.needs is not None and member.rules.leads(model.OWNER, now)

    monkeypatch.setattr(model.Member, "can_serve", can_serve)

    with pytest.raises(model.Broken, match="receipted"):
        model.explore(receipted_before_b_serves(), states_max=STATES_MAX)


# When an ACK may be receipted at level `quorum`


def test_a_settle_is_for_good_when_a_majority_with_the_server_has_it() -> None:
    nodes = mesh()

    assert settled_through(nodes["c"], "a", {"a": 5, "b": 0, "c": 9}) == 5
    assert settled_through(nodes["c"], "a", {"a": 9, "b": 9, "c": 7}) == 9
    assert settled_through(nodes["c"], "a", {"a": 0, "b": 9, "c": 9}) == 0
    assert settled_through(nodes["a"], "a", {"a": 9, "b": 0, "c": 0}) == 0


def test_the_present_server_must_have_the_settle_and_not_the_one_before() -> None:
    nodes = taken_over()

    assert settled_through(nodes["c"], "a", {"a": 9, "b": 0, "c": 9}) == 0
    assert settled_through(nodes["c"], "a", {"a": 0, "b": 9, "c": 9}) == 9


def test_a_node_that_has_promised_a_later_term_does_not_count() -> None:
    nodes = mesh()
    exchange(nodes, 1.0, "ab", "ac")
    nodes["b"].promised["a"] = Term(1, "b")
    assert settled_through(nodes["a"], "a", {"a": 9, "b": 9, "c": 0}) == 9

    exchange(nodes, 2.0, "ab")

    assert settled_through(nodes["a"], "a", {"a": 9, "b": 9, "c": 0}) == 0


def test_messages_of_a_node_that_is_no_member_are_never_settled_for_good() -> None:
    assert settled_through(mesh()["a"], "x", {"a": 9, "b": 9, "c": 9}) == 0


def no_server(rules: Ownership, owner: str, marks: Mapping[str, int]) -> int:
    """Any majority will do."""
    return int(
        rules.is_majority([name for name in marks if rules.promise_heard(name, owner) <= rules.term_of(owner).number])
    )


def no_promises(rules: Ownership, owner: str, marks: Mapping[str, int]) -> int:
    """Those count, too, that may have voted before they had the settle."""
    return int(rules.is_majority(list(marks)) and rules.term_of(owner).server in marks)


def server_alone(rules: Ownership, owner: str, marks: Mapping[str, int]) -> int:
    """Who serves now is enough."""
    return int(rules.term_of(owner).server in marks)


@pytest.mark.seeded_bug
@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (no_server, acked_at_c_while_a_has_forgotten),
        (no_promises, acked_at_a_while_b_serves),
        (server_alone, acked_at_a_while_b_serves),
    ],
)
def test_a_receipt_that_is_given_too_early_is_found(
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[Ownership, str, Mapping[str, int]], int],
    first: Callable[[], model.World],
) -> None:
    monkeypatch.setattr(model, "settled_through", plant)

    with pytest.raises(model.Broken, match="receipted"):
        model.explore(first(), states_max=STATES_MAX)
