"""What can happen to the ownership of one node's messages, in a small world.

Three nodes, `a`, `b` and `c`; the owner is `a`; two messages; one cut (a node alone, deaf or mute, or two nodes apart,
both ways or one way) that heals at any moment, and one crash of any node, which starts again at any later moment. Time
goes in ticks: `after_seconds` is three of them, or six on some nodes where that differs, which a restart may then
change in either direction; and with each tick the nodes that reach each other exchange beats. Everything else (bids,
votes, handing out, settling, telling settles, confirming them, receipts, releases) happens in any order between them.
What a node confirms is known where it was settled from then on, as old as it may get; what the node had promised came
before it on the link.

Three ways to look, each at its own part of that:

- **To the end**: worlds without messages whose beats come with the ticks have some thousand states with one fault (a
  cut or a crash) and terms up to 2, so all of them are looked at. With both faults they are beyond 450,000, which is
  for a night: `python -m tests.broker.ownership_model`. What hangs on a beat that comes late (a promise that is not
  told yet) only the others see.
- **Breadth first**, with messages and beats that come late or get lost, so far as patience allows: from the beginning,
  and from the middle of a takeover.
- **Drawn walks**, which go deeper.

Watched in every step: no two nodes may hand out at the same time, and nothing is handed out whose ACK was receipted at
level `quorum` (`qmq.broker.takeover.quorum_acks`). And at the end of walks the world comes to rest once it is healed:
everything is settled, and every ACK receipted. A rule that is broken on purpose must show as one of these.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import Final

from qmq.broker.takeover.leases import Bid, Claim, Ownership, PeerReport, Term
from qmq.broker.takeover.quorum_acks import settled_through

NODES: Final = ("a", "b", "c")
OWNER: Final = "a"
AFTER: Final = 3.0
LONGER: Final = 6.0
MESSAGES: Final = ("m", "n")
MAJORITY: Final = 2
TERM_MAX: Final = 3
AGE_FACTOR: Final = 5 / 3
"""Nothing depends on what is older: `after_seconds`, and the turns of two candidates."""
WEIGHTS: Final = {
    "tick": 3.0,
    "quiet tick": 0.5,
    "beat": 0.5,
    "cut": 0.05,
    "heal": 0.15,
    "crash": 0.05,
    "hand out": 0.3,
    "bid": 4.0,
    "vote": 4.0,
}
"""How often a walk takes each kind of step."""
CALM_TICKS: Final = 16
"""In so many ticks without faults everything must be settled."""
Cut = frozenset[tuple[str, str]]
"""What is lost while it lasts: (from, to)."""

OWNER_ALONE: Final[Cut] = frozenset({("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")})
OWNER_AND_B: Final[Cut] = frozenset({("a", "b"), ("b", "a")})


def _cuts() -> Iterator[Cut]:
    """A node alone, deaf or mute; two nodes apart, or one way."""
    for name in NODES:
        out = frozenset((name, other) for other in NODES if other != name)
        back = frozenset((other, name) for other in NODES if other != name)
        yield from (out | back, out, back)
    for here, there in permutations(NODES, 2):
        yield frozenset({(here, there)})
        if here < there:
            yield frozenset({(here, there), (there, here)})


CUTS: Final = tuple(_cuts())

Make = Callable[..., Ownership]


Step = tuple[str, Callable[[], "World"]]
"""What may happen, and what becomes of it: made only if it is wanted, for walks take one of many."""


class Broken(Exception):
    """What must never happen has happened."""


class Member:
    """One node: its rules, the settles it knows, and what it has under way."""

    def __init__(self, rules: Ownership) -> None:
        self.rules = rules
        self.earlier_after = rules.after
        """On its disk: the longest `after_seconds` that a lease may lean on."""
        self.settled: frozenset[str] = frozenset()
        self.out: frozenset[str] = frozenset()
        """Handed out by this node as the server, not known to be settled."""
        self.held: frozenset[str] = frozenset()
        """With consumers of this node."""
        self.acked: frozenset[str] = frozenset()
        """By consumers of this node, which wait for the receipts."""
        self.confirmed: frozenset[tuple[str, str]] = frozenset()
        """(node, message): that node has told that it has the settle on its disk."""
        self.needs: frozenset[str] | None = None
        """Settles that it must know before it hands out; None: it has nothing to hand out."""
        self.bid: Bid | None = None
        self.votes: frozenset[str] = frozenset()
        self.learned: frozenset[str] = frozenset()
        self.released: Term | None = None
        self.is_down = False

    def copy(self) -> "Member":
        new = Member.__new__(Member)
        new.__dict__.update(self.__dict__)
        new.rules = copy_rules(self.rules)
        return new

    def can_serve(self, now: float) -> bool:
        return (
            not self.is_down and self.needs is not None and self.needs <= self.settled and self.rules.leads(OWNER, now)
        )

    def key(self, now: float, longest: float) -> tuple[object, ...]:
        if self.is_down:
            promised, term = self.rules.promised.get(OWNER), self.rules.terms.get(OWNER)
            return self.settled, self.earlier_after, self.rules.after, promised, term
        state = (self.settled, self.out, self.held, self.needs, self.bid, self.votes, self.learned, self.released)
        return state, self.acked, self.confirmed, self.earlier_after, key_of(self.rules, now, longest)


class World:
    """The three nodes, what is lost between them, and the receipts that were given."""

    def __init__(
        self,
        make: Make = Ownership,
        after: Mapping[str, float] | None = None,
        *,
        messages: Sequence[str] = MESSAGES,
        cuts: int = 1,
        crashes: int = 1,
        term_max: int = TERM_MAX,
        in_step: bool = False,
    ) -> None:
        """`after`: `after_seconds` of each node, when a crash may also change it. `in_step`: every beat that is not cut
        off comes with the tick; else any may be late, and come between two ticks."""
        self.now = 0.0
        self.may_change = after is not None
        self.messages = messages
        self.term_max = term_max
        self.in_step = in_step
        self.cut: Cut = frozenset()
        self.cuts_left = cuts
        self.crashes_left = crashes
        self.receipted: frozenset[str] = frozenset()
        self.members = {name: Member(make(name, NODES, (after or {}).get(name, AFTER), 0.0)) for name in NODES}
        self.longest = LONGER if self.may_change else AFTER
        self.members[OWNER].needs = frozenset()
        for _ in range(int(self.longest)):
            self.tick()

    def copy(self, *touched: str) -> "World":
        new = World.__new__(World)
        new.__dict__.update(self.__dict__)
        new.members = {name: m.copy() if name in touched else m for name, m in self.members.items()}
        return new

    def key(self) -> tuple[object, ...]:
        members = tuple([member.key(self.now, self.longest) for member in self.members.values()])
        return self.cut, self.cuts_left, self.crashes_left, self.receipted, members

    # Steps. Each changes this world, which is a copy of the one before.

    def tick(self, *, is_quiet: bool = False) -> None:
        """Time passes; unless `is_quiet`, those that reach each other exchange beats."""
        self.now += 1
        for member in self.members.values():
            # What was not answered at once is asked anew.
            member.bid = None
            member.votes = member.learned = frozenset()
        for _ in range(0 if is_quiet else 2):
            for here in NODES:
                for there in NODES:
                    self.tell(here, there)
        for name in NODES:
            if not self.members[name].is_down:
                self.look(name)

    def reach(self, *names: str) -> bool:
        """Whether these are up and have the same `after_seconds`, and nothing is cut off between them."""
        both = frozenset(permutations(names, 2))
        members = [self.members[name] for name in names]
        is_same = len({member.rules.after for member in members}) == 1
        return is_same and not both & self.cut and not any(member.is_down for member in members)

    def look(self, name: str) -> None:
        """What a node does by itself."""
        member = self.members[name]
        member.rules.claim_own(self.now)
        if self.now >= member.rules.bound_until:
            member.earlier_after = member.rules.after
        if member.rules.term_of(OWNER).server != name:
            member.needs = None
        elif name == OWNER and member.needs is None and OWNER in member.rules.claims:
            member.needs = frozenset()

    def tell(self, here: str, there: str) -> None:
        """A beat, and its echo, as far as they get through."""
        if here == there or (here, there) in self.cut or self.members[here].is_down or self.members[there].is_down:
            return
        one, other = self.members[here].rules, self.members[there].rules
        if one.after != other.after:
            return  # Their link is refused.
        beat = one.beat(self.now)
        other.hear(here, beat, self.now)
        if (there, here) not in self.cut:
            one.hear(there, other.beat(self.now, echo_us=beat.stamp_us, asks_echo=False), self.now)

    def beat(self, here: str, there: str) -> None:
        """One comes between two ticks."""
        self.tell(here, there)
        self.look(here)
        self.look(there)

    def cut_off(self, cut: Cut) -> None:
        self.cut, self.cuts_left = cut, 0

    def heal(self) -> None:
        self.cut = frozenset()

    def crash(self, name: str, make: Make, after: float | None = None) -> None:
        """The process ends and starts again at once, perhaps with another `after_seconds`."""
        self.end(name)
        self.begin(name, make, after)

    def end(self, name: str) -> None:
        """The process ends: what it had only in memory is gone, its consumers too."""
        member = self.members[name]
        member.is_down = True
        member.bid = member.released = member.needs = None
        member.votes = member.learned = member.out = member.held = member.acked = frozenset()
        member.confirmed = frozenset()

    def end_for_once(self, name: str) -> None:
        """The one crash of this world."""
        self.crashes_left = 0
        self.end(name)

    def begin(self, name: str, make: Make, after: float | None = None) -> None:
        """It starts again."""
        member = self.members[name]
        member.is_down = False
        old = member.rules
        after = after or old.after
        known = {"promised": old.promised, "terms": old.terms, "earlier_after": member.earlier_after}
        member.rules = make(name, NODES, after, self.now, **known)
        member.earlier_after = max(after, member.earlier_after)
        member.rules._stamp_us = old._stamp_us  # its clock went on
        is_own = name == OWNER and member.rules.term_of(OWNER).server == OWNER
        # An owner that comes back first learns what a majority knows; see `steps`.
        member.needs = frozenset(m for m in self.messages if self.is_known(m)) if is_own else None

    def is_known(self, message: str) -> bool:
        return sum(message in member.settled for member in self.members.values()) >= MAJORITY

    def bid(self, candidate: str, bid: Bid) -> None:
        self.members[candidate].bid = bid

    def vote(self, candidate: str, voter: str) -> None:
        member, other = self.members[candidate], self.members[voter]
        assert member.bid is not None
        if not other.rules.vote(member.bid, self.now):
            return
        member.votes |= {voter}
        member.learned |= other.settled
        if len(member.votes) >= MAJORITY:
            member.rules.won(member.bid, self.now)
            member.needs = member.learned
            member.bid = member.released = None
            member.votes = member.learned = frozenset()

    def check_hand_out(self, server: str, message: str) -> None:
        """Raises Broken."""
        if message in self.receipted:
            raise Broken(f"{server} hands out {message} after its ACK was receipted")

    def hand_out(self, server: str, message: str, consumer: str) -> None:
        self.check_hand_out(server, message)
        self.members[server].out |= {message}
        self.members[consumer].held |= {message}

    def settle(self, consumer: str, message: str) -> None:
        """A consumer of this node acknowledges what it has."""
        member = self.members[consumer]
        member.held -= {message}
        member.settled |= {message}
        member.acked |= {message}
        member.out -= {message}

    def tell_settles(self, here: str, there: str) -> None:
        """Records go from one node to another."""
        other = self.members[there]
        other.settled |= self.members[here].settled
        other.out -= other.settled

    def confirm(self, consumer: str, name: str) -> None:
        """`name` tells which of the settles it has; the word about what it has promised comes first on the link."""
        member, other = self.members[consumer], self.members[name]
        promised = other.rules.promised.get(OWNER)
        if promised is not None:
            heard = member.rules.peers[name]
            heard.promises[OWNER] = max(promised.number, heard.promises.get(OWNER, 0))
        member.confirmed |= {(name, message) for message in member.acked & other.settled}

    def receipt(self, consumer: str, message: str) -> None:
        member = self.members[consumer]
        member.acked -= {message}
        member.confirmed = frozenset(one for one in member.confirmed if one[1] != message)
        self.receipted |= {message}

    def may_receipt(self, consumer: str, message: str) -> bool:
        """At level `quorum`, as the consumer's node sees it."""
        member = self.members[consumer]
        marks = {name: 1 for name, known in member.confirmed if known == message}
        return settled_through(member.rules, OWNER, {**marks, consumer: 1}) == 1


def _step(environment: World, what: str, touched: Sequence[str], change: Callable[..., None], *args: object) -> Step:
    def follow() -> World:
        new = environment.copy(*touched)
        change(new, *args)
        return new

    return what, follow


def steps(environment: World, make: Make = Ownership) -> Iterator[Step]:
    """Every step that can follow. Raises Broken if one of them is forbidden."""
    step = partial(_step, environment)
    now = environment.now
    yield step("tick", NODES, World.tick)
    if not environment.in_step:
        yield step("quiet tick", NODES, partial(World.tick, is_quiet=True))
    for here, there in permutations(NODES, 2):
        if (
            (here, there) not in environment.cut
            and not environment.in_step
            and environment.reach(here)
            and environment.reach(there)
        ):
            yield step("beat", (here, there), World.beat, here, there)
    if environment.cuts_left:
        for cut in CUTS:
            yield step("cut", (), World.cut_off, cut)
    if environment.cut:
        yield step("heal", (), World.heal)
    for name, member in environment.members.items():
        if member.is_down:
            for after in (AFTER, LONGER) if environment.may_change else (None,):
                yield step("start", (name,), World.begin, name, make, after)
        elif environment.crashes_left:
            yield step("crash", (name,), World.end_for_once, name)
    for name, member in environment.members.items():
        rules = member.rules
        if member.is_down:
            continue
        if member.bid is None:
            bid = rules.bid_for(OWNER, now, member.released)
            if bid is not None and bid.term <= environment.term_max:
                yield step("bid", (name,), World.bid, name, bid)
        else:
            for voter in NODES:
                if environment.reach(name, voter) and voter not in member.votes:
                    yield step("vote", (name, voter), World.vote, name, voter)
        yield from _deliveries(environment, name)
        for other in NODES:
            is_open = (name, other) not in environment.cut and not environment.members[other].is_down
            if other != name and is_open and not member.settled <= environment.members[other].settled:
                yield step("tell", (other,), World.tell_settles, name, other)
    released = _release(environment)
    if released is not None:
        yield "release", lambda: released


def _deliveries(environment: World, name: str) -> Iterator[Step]:
    step, member = partial(_step, environment), environment.members[name]
    if member.can_serve(environment.now):
        for message in environment.messages:
            if message not in member.settled and message not in member.out:
                for consumer in sorted({name, "c"}):
                    reached = consumer == name or (name, consumer) not in environment.cut
                    reached = reached and not environment.members[consumer].is_down
                    if reached and message not in environment.members[consumer].held:
                        environment.check_hand_out(name, message)
                        yield step("hand out", (name, consumer), World.hand_out, name, message, consumer)
    for message in sorted(member.held):
        yield step("settle", (name,), World.settle, name, message)
    for other in NODES:
        news = {(other, message) for message in member.acked & environment.members[other].settled}
        is_open = (other, name) not in environment.cut and not environment.members[other].is_down
        if other != name and is_open and not news <= member.confirmed:
            yield step("confirm", (name,), World.confirm, name, other)
    for message in sorted(member.acked):
        if environment.may_receipt(name, message):
            yield step("receipt", (name,), World.receipt, name, message)


def _release(environment: World) -> World | None:
    """The owner is back and asks the node that serves it to stop; None: it does not, or in vain."""
    owner = environment.members[OWNER]
    heard = owner.rules.server_heard(OWNER, environment.now)
    if owner.is_down or OWNER in owner.rules.claims or owner.released is not None or heard is None:
        return None
    server = heard.server
    if not environment.reach(OWNER, server):
        return None
    new = environment.copy(OWNER, server)
    if not new.members[server].rules.release(OWNER, heard.number):
        return None
    new.members[server].needs = None
    new.members[server].out = frozenset()
    new.members[OWNER].released = heard
    new.members[OWNER].learned |= new.members[server].settled
    return new


def calm_down(environment: World, make: Make = Ownership) -> None:
    """Without faults everything is settled by and by. Raises Broken when it is not."""
    environment = environment.copy(*NODES)
    environment.cut = frozenset()
    for name in NODES:
        if environment.members[name].is_down:
            environment.begin(name, make)
    after = environment.members[OWNER].rules.after
    for name, member in environment.members.items():
        if member.rules.after != after:
            environment.crash(name, make, after)  # The operator brings the change to its end.
    for _ in range(CALM_TICKS * round(environment.longest / AFTER)):
        environment.tick()
        known = frozenset[str]().union(*[member.settled for member in environment.members.values()])
        for member in environment.members.values():
            member.settled = known
            member.out -= known
        environment = _release(environment) or environment
        for name, member in environment.members.items():
            member.bid = member.rules.bid_for(OWNER, environment.now, member.released)
            if member.bid is not None:
                for voter in NODES:
                    if member.bid is not None:
                        environment.vote(name, voter)
            if member.can_serve(environment.now):
                for message in environment.messages:
                    if message not in member.settled:
                        # Whoever had it before has given it back, or will settle it.
                        environment.hand_out(name, message, name)
                        member.settled |= {message}
        for name, member in environment.members.items():
            for other in NODES:
                if other != name:
                    environment.confirm(name, other)
            member.acked = frozenset(message for message in member.acked if not environment.may_receipt(name, message))
        if all(
            member.settled == frozenset(environment.messages) and not member.acked
            for member in environment.members.values()
        ):
            return
    raise Broken("the mesh is whole, and messages or receipts wait")


def explore(first: World, make: Make = Ownership, *, states_max: int) -> int:
    """Look at every world that can be reached from `first`, breadth first, until so many are seen; how many there were.
    Fewer than `states_max`: these are all. Raises Broken."""
    seen = {first.key()}
    waiting = deque([first])
    while waiting and len(seen) < states_max:
        for _, follow in steps(waiting.popleft(), make):
            new = follow()
            key = new.key()
            if key not in seen:
                check(new)
                seen.add(key)
                waiting.append(new)
    return len(seen)


def check(environment: World) -> None:
    """Raises Broken."""
    if (
        sum(
            OWNER in member.rules.claims and member.can_serve(environment.now)
            for member in environment.members.values()
        )
        > 1
    ):
        raise Broken("two nodes may hand out")


def walk(seed: int, make: Make = Ownership, *, first: World | None = None, steps_max: int = 60) -> None:
    """One long history, drawn. What breadth first finds only after millions of states lies that deep. Raises Broken."""
    rng = random.Random(seed)
    environment = first or World(make)
    for _ in range(steps_max):
        found = list(steps(environment, make))
        weights = [WEIGHTS.get(what, 1.0) for what, _ in found]
        environment = rng.choices(found, weights)[0][1]()
        check(environment)
    calm_down(environment, make)


# Copies and keys, by hand: they are what takes the time.


def copy_rules(rules: Ownership) -> Ownership:
    new = type(rules).__new__(type(rules))
    new.__dict__.update(rules.__dict__)
    new.is_majority = new._is_more_than_half
    new.promised, new.terms, new.claims = dict(rules.promised), dict(rules.terms), dict(rules.claims)
    new.peers = {name: _copy_heard(heard) for name, heard in rules.peers.items()}
    return new


def _copy_heard(heard: PeerReport) -> PeerReport:
    new = PeerReport()
    new.at, new.well_at, new.echo_us = heard.at, heard.well_at, heard.echo_us
    new.claims, new.promises = dict(heard.claims), dict(heard.promises)
    return new


def key_of(rules: Ownership, now: float, longest: float) -> tuple[object, ...]:
    """All that `rules` decides by; `longest` is the longest `after_seconds` in this world."""

    def _age(at: float) -> float:
        """Beyond some ticks nothing depends on it any more."""
        return min(now - at, longest * AGE_FACTOR)

    claim: Claim | None = rules.claims.get(OWNER)
    peers = tuple(
        [
            (
                _age(heard.well_at),
                _age(heard.claims[OWNER][1]) if OWNER in heard.claims else None,
                heard.claims[OWNER][0] if OWNER in heard.claims else None,
                min(round(now - heard.echo_us / 1e6), longest),
                claim is not None and heard.echo_us > claim.stamp_us,
                heard.promises.get(OWNER, 0),
            )
            for heard in rules.peers.values()
        ]
    )
    own = (rules.promised.get(OWNER), rules.terms.get(OWNER), None if claim is None else claim.term)
    since = (_age(rules.awake_since), max(0.0, _age(rules.contact_since)))
    bound = (rules.after, max(0.0, rules.bound_until - now))
    return since, bound, None if claim is None else min(now - claim.since, longest), own, peers


def main() -> None:
    """Look at all worlds with a cut and a crash, which takes long, and say how many they are."""
    begun = time.monotonic()
    count = explore(World(messages=(), term_max=2, in_step=True), states_max=10**9)
    print(f"{count} states with one cut and one crash, none of them with two servers; {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
