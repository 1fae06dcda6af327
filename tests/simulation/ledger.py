"""What clients did and saw, as the checks need it. Only clients write.

Every message has an id of its own at the start of its body, so what comes back can be matched without trusting a
header. It is sent once, and an outcome without an answer stays unknown, except by the insisting clients.
"""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from qmq.client.core.vectors import parse_gap
from qmq.model.dots import Dot, Origin, Vector, parse_origin
from tests.simulation.operations import Operations


@dataclass(slots=True)
class Sent:
    """One message as its publisher sent it."""

    id: str
    publisher: str
    number: int
    destination: str
    body: bytes
    at: float
    """Virtual seconds."""
    node: str
    """To which it was sent first. Only insisting clients send a message to another one too."""
    connected_at: float = 0.0
    """When the connection began that it was sent over, virtual seconds."""
    transaction: int = 0
    """Which of its publisher's transactions it belongs to; 0: none."""
    receipted_by: Origin | None = None
    """The incarnation whose receipt the publisher has."""
    level: str = ""
    """The `receipt-level` that it asked for; "" for the default of the mesh."""
    receipted_at: float = 0.0
    """Virtual seconds; of those that are timed."""
    copies: int = 1
    """On how many disks the receipt says that it is."""


@dataclass(slots=True)
class Stream:
    """What one fanout subscriber has got, over all its connections."""

    subscriber: str
    destination: str
    seen: dict[Dot, str] = field(default_factory=dict)
    vector: Vector = field(default_factory=dict)


class Gap(NamedTuple):
    """A gap notice of one origin that a subscriber got: both sequences belong to it."""

    subscriber: str
    destination: str
    origin: Origin
    first: int
    last: int


MOMENT_SECONDS = 0.5
"""In which an acknowledgement reaches every node of a healthy mesh, on slow disks too."""


@dataclass(slots=True)
class Place:
    """A durable subscription, over all connections that ever had its name."""

    destination: str
    given: dict[str, int] = field(default_factory=dict)
    attached: int = 0
    """How often a client had the name."""
    acknowledged: dict[str, float] = field(default_factory=dict)
    """Message → when its client had the first receipt of an ACK, virtual seconds."""
    again_at_same_node: list[tuple[str, str]] = field(default_factory=list)
    """(node, message): given again by a node that had receipted the ACK."""
    again_after_a_moment: list[str] = field(default_factory=list)
    _receipted_at: dict[tuple[str, str], float] = field(default_factory=dict)

    def give(self, message_id: str, node: str, since: float) -> None:
        """A client that came to `node` at `since` reads it.

        What it was given may have lain in its buffer while the other client had the name, and acknowledged the same.
        """
        self.given[message_id] = self.given.get(message_id, 0) + 1
        if self._receipted_at.get((message_id, node), since) < since:
            self.again_at_same_node.append((node, message_id))
        at = self.acknowledged.get(message_id)
        if at is not None and since > at + MOMENT_SECONDS:
            self.again_after_a_moment.append(f"{node} gave {message_id} at {trio.current_time():.3f}, ACK at {at:.3f}")

    def acknowledge(self, message_id: str, node: str) -> None:
        """`node` has receipted the ACK."""
        self.acknowledged.setdefault(message_id, trio.current_time())
        self._receipted_at.setdefault((message_id, node), trio.current_time())


class Given(NamedTuple):
    """A message of which, and of those like it, only one consumer may have some at a time."""

    what: str
    """Queue or group."""
    who: str
    at: float
    """Virtual seconds, as the following two."""
    changed_at: float
    """When a consumer had come or gone last."""
    sent_at: float
    owner: str


@dataclass(slots=True)
class Turns:
    given: list[Given] = field(default_factory=list)
    _changed_at: float = 0.0

    def changed(self) -> None:
        """A consumer comes, or has gone."""
        self._changed_at = trio.current_time()

    def give(self, what: str, who: str, message: Sent) -> None:
        """A consumer reads a message of `what`."""
        self.given.append(Given(what, who, trio.current_time(), self._changed_at, message.at, message.node))


@dataclass(slots=True)
class Ledger:
    """The whole of it. `wrongs` are broken promises that a client noticed by itself."""

    sent: dict[str, Sent] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    listeners: dict[str, set[str]] = field(default_factory=dict)
    """What those got that listen to the topics without moving."""
    answers: set[tuple[str, str]] = field(default_factory=set)
    """(who called, where it was heard) of the roll call."""
    delivered: dict[str, int] = field(default_factory=dict)
    """Queue message → how often a consumer was given it."""
    consumed: set[str] = field(default_factory=set)
    """Queue messages that a consumer has worked on and sent an ACK for."""
    ack_receipted: dict[str, set[str]] = field(default_factory=dict)
    """Queue message → the nodes that have receipted an ACK of it."""
    settled_for_good: dict[str, float] = field(default_factory=dict)
    """Queue message → when a consumer heard that no node will hand it out again, virtual seconds."""
    again_for_good: list[str] = field(default_factory=list)
    """What was given all the same, to a consumer that came later."""
    read: set[str] = field(default_factory=set)
    """The `message-id` of every queue message that a consumer has read."""
    unmarked: list[str] = field(default_factory=list)
    """What was read once more under the same `message-id`, without `redelivered`."""
    last_of_group: dict[tuple[Origin, str, str, bool], int] = field(default_factory=dict)
    """Origin, queue, group, whether the selector of `consume` matches → the last sequence read for the first time."""
    overtaken: list[str] = field(default_factory=list)
    """What was read for the first time behind a later message of its group."""
    records_given: dict[str, dict[str, bool]] = field(default_factory=dict)
    """Queue message with a dedup id → the `message-id` of each record that a consumer was given → whether it says that
    it is a retry."""
    again_after_edge: list[str] = field(default_factory=list)
    """What was given after the receipt of an ACK at the level `edge`, and of none at `quorum`."""
    again_after_quorum: list[str] = field(default_factory=list)
    """What was given after the receipt of an ACK at `quorum`, also to a consumer that was there before."""
    again_at_same_node: list[tuple[str, str]] = field(default_factory=list)
    """(node, message): given again by the very node that had receipted the ACK."""
    tries: dict[str, int] = field(default_factory=dict)
    """Poison → how often a consumer was given it."""
    deaths: dict[str, int] = field(default_factory=dict)
    """Poison → how often a consumer died of it."""
    counts: dict[str, int] = field(default_factory=dict)
    """Poison → its last `delivery-count`."""
    rejuvenated: list[tuple[str, int, int]] = field(default_factory=list)
    """Poison that came with a lower one: from, to."""
    letters: dict[str, set[str]] = field(default_factory=dict)
    """Poison → ids of the dead letters that were read of it."""
    ages: dict[str, float] = field(default_factory=dict)
    """Timed message → seconds after its receipt when it was given."""
    expired: dict[str, float] = field(default_factory=dict)
    """Timed message → seconds after it was sent when its dead letter was read; of meshes of first lives."""
    jobs: dict[int, str] = field(default_factory=dict)
    """Job id of beanstalkd → message."""
    job_ids: dict[str, int] = field(default_factory=dict)
    """And the reverse."""
    rewritten: set[str] = field(default_factory=set)
    """Jobs that a worker has released or buried: they may be in another message of their tube."""
    turns: Turns = field(default_factory=Turns)
    outstanding: dict[str, object] = field(default_factory=dict)
    """Message → the consumer, alive, that was given it and has not acknowledged it."""
    gaps: list[Gap] = field(default_factory=list)
    """The gap notices of subscribers of fanouts."""
    operations: Operations = field(default_factory=Operations)
    wrongs: list[str] = field(default_factory=list)

    def send(self, publisher: str, number: int, node: str, destination: str, rng: random.Random) -> Sent:
        """A new message with a body that nothing else has; some hold NULs, some are larger than a segment."""
        message_id = f"{publisher}.{number}"
        size = rng.choice((0, 10, 10, 100, 100, 700, 6000))
        body = message_id.encode() + b"\0" + rng.randbytes(size)
        message = Sent(message_id, publisher, number, destination, body, trio.current_time(), node)
        self.sent[message_id] = message
        return message

    def match(self, where: str, destination: str, body: bytes) -> str | None:
        """The id of what was delivered, or None when no client ever sent that; then it is noted as wrong."""
        message_id = id_of(body)
        sent = self.sent.get(message_id)
        if sent is None:
            self.wrongs.append(f"I2 invented: {where} got {body[:40]!r}, which no client sent")
            return None
        if sent.body != body or sent.destination != destination:
            self.wrongs.append(f"I2 changed: {where} got {message_id} with another body or destination")
            return None
        return message_id

    def match_moved(self, where: str, queues: Collection[str], body: bytes) -> str | None:
        """As `match`, of a message that was sent to one of `queues` and may have moved since."""
        sent = self.sent.get(id_of(body))
        destination = sent.destination if sent is not None and sent.destination in queues else ""
        return self.match(where, destination, body)

    def name_job(self, message_id: str, job: int, where: str) -> None:
        """A client of beanstalkd hears the id of a job, which is the same for good, whatever becomes of its message."""
        first = self.job_ids.setdefault(message_id, job), self.jobs.setdefault(job, message_id)
        if first != (job, message_id):
            self.wrongs.append(f"B1 id: {where} named {message_id} {job}; before, {first[1]} was {first[0]}")

    def miss(self, subscriber: str, destination: str, header: str) -> Vector:
        """A subscriber gets a gap notice; returns up to where it goes, by origin."""
        spans = {parse_origin(origin): span for origin, span in parse_gap(header).items()}
        self.gaps += [Gap(subscriber, destination, origin, *span) for origin, span in spans.items()]
        return {origin: last for origin, (_, last) in spans.items()}

    def follow(self, stream: Stream, dot: Dot, message_id: str) -> None:
        """A fanout subscriber gets a message."""
        last = stream.vector.get(dot.origin, 0)
        if dot in stream.seen:
            self.wrongs.append(f"I5 twice: {stream.subscriber} got {dot} ({message_id}) again")
        elif dot.sequence <= last:
            self.wrongs.append(f"I4 order: {stream.subscriber} got {dot} ({message_id}) after {last}")
        stream.vector[dot.origin] = max(last, dot.sequence)
        stream.seen[dot] = message_id

    def give(self, message_id: str, node: str, since: float = 0.0) -> None:
        """A consumer, which came to `node` at `since`, is given a queue message.

        What was handed out before an ACK was receipted may come after it; not to a client that came later still.
        """
        self.delivered[message_id] = self.delivered.get(message_id, 0) + 1
        for_good = self.settled_for_good.get(message_id)
        if for_good is not None and since > for_good:
            self.again_for_good.append(f"{node} gave {message_id} at {trio.current_time():.3f}, ACK at {for_good:.3f}")
        if message_id in self.ack_receipted:
            (self.again_after_edge if for_good is None else self.again_after_quorum).append(message_id)
            if node in self.ack_receipted[message_id]:
                self.again_at_same_node.append((node, message_id))

    def note_mark(self, headers: Mapping[str, str]) -> None:
        """A consumer reads a queue message with these headers."""
        message_id = headers["message-id"]
        if message_id in self.read and headers.get("redelivered") != "true":
            self.unmarked.append(f"{message_id} of {headers['destination']} at {trio.current_time():.3f}")
        elif headers.get("redelivered") != "true" and "JMSXGroupID" in headers:
            self._note_group(message_id, headers)
        self.read.add(message_id)

    def _note_group(self, message_id: str, headers: Mapping[str, str]) -> None:
        """A consumer reads a message of a group, for the first time as far as its headers say.

        The selector of `consume` divides groups: what it does not match may wait for another consumer.
        """
        dot = dot_of(message_id)
        half = "3" in headers.get("x-id", "")
        key = (dot.origin, headers["destination"], headers["JMSXGroupID"], half)
        last = self.last_of_group.get(key, 0)
        if dot.sequence < last:
            self.overtaken.append(f"{message_id} of {key[2]} in {key[1]} after {last} at {trio.current_time():.3f}")
        self.last_of_group[key] = max(last, dot.sequence)

    def take_in_hand(self, message_id: str, who: object) -> None:
        """A consumer is given a message that it is going to keep for a while."""
        other = self.outstanding.get(message_id)
        if other is not None:
            self.wrongs.append(f"I24 two hands: {message_id} was given to {who} while {other} had it")
        self.outstanding[message_id] = who

    def receipt_of_ack(self, message_id: str, node: str, *, for_good: bool = False) -> None:
        """A consumer hears from `node` that its ACK is recorded; `for_good`: at the level `quorum`, and not less."""
        self.ack_receipted.setdefault(message_id, set()).add(node)
        if for_good:
            self.settled_for_good.setdefault(message_id, trio.current_time())

    def receipt(self, message: Sent, by: Origin, copies: int) -> None:
        """A publisher hears that `message` is on so many disks; on none for sure when it is of level `accepted`."""
        if copies:
            message.receipted_by = by
            message.copies = copies

    @property
    def receipted(self) -> list[Sent]:
        return [message for message in self.sent.values() if message.receipted_by is not None]


def id_of(body: bytes) -> str:
    """The id at the start of a body; what comes before the first NUL."""
    return body.partition(b"\0")[0].decode("utf-8", "replace")


def dot_of(message_id: str) -> Dot:
    """The dot in a `message-id` header."""
    origin, _, sequence = message_id.rpartition("-")
    return Dot(parse_origin(origin), int(sequence))


def resume_header(vector: Vector) -> str:
    """`qmq-resume` for what has been seen."""
    return ",".join(f"{origin}={sequence}" for origin, sequence in vector.items())
