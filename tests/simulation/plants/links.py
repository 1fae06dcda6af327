"""Mistakes between nodes: what a vector means, what a feed sends, what is accepted."""

from collections.abc import Iterator
from functools import partial
from itertools import count
from unittest.mock import patch

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.message import Message
from qmq.broker.topics import retained
from qmq.broker.topics.router import TopicRouter
from qmq.engine.commit_path import CommitPath
from qmq.errors import MeshError
from qmq.model.dots import Origin, Vector
from qmq.replication.anti_entropy.acceptance import NOT_HERE, Acceptance
from qmq.replication.anti_entropy.feed import JournalFeed, Read
from qmq.replication.links.registry import LinkRegistry
from qmq.replication.links.routes import Neighbour, Routes
from qmq.replication.protocol.frames import Batches, Gap, Hole
from qmq.sessions.delivery.fanout_subscribers import FanoutSubscribers
from qmq.storage.format.batch import BatchHead, batch_records, read_head
from qmq.storage.format.record import RecordKind
from qmq.storage.log.journal import Journal
from tests.simulation.plan import Family
from tests.simulation.plants.registry import seeded_bug


@seeded_bug(Family.CUTS, "I1", "I3", "I13", seed=6)
def vector_as_highest_seen() -> Iterator[None]:
    """A vector means "the highest that I saw": feeds jump over what they skipped, and holes are accepted."""
    judge, acknowledged = Acceptance._is_new, JournalFeed.acknowledged

    def is_new(acceptance: Acceptance, head: BatchHead, have: Vector) -> bool:
        try:
            return judge(acceptance, head, have)
        except MeshError as error:
            if error.code == NOT_HERE:
                return True
            raise

    def hear(feed: JournalFeed, ack: object) -> None:
        began = feed.began
        acknowledged(feed, ack)  # type: ignore[arg-type]  # handed on as it came
        if began:
            feed.seek_again = False

    def select(feed: JournalFeed, read: Read, durable_end: int, base: Vector) -> tuple[list[object], int | None]:
        frames: list[object] = []
        chosen: list[bytes] = []
        position = None
        for begin, head, data in read:
            if begin + head.size > durable_end:
                break
            position = begin + head.size
            if head.last > feed.peer.get(head.origin, 0) and head.origin not in feed._direct:
                chosen.append(data)
                feed.peer[head.origin] = head.last
        feed._close(frames, chosen)  # type: ignore[arg-type]  # a list of frames
        return frames, position

    journal = partial(patch.object, Journal)
    feed = partial(patch.object, JournalFeed)
    with journal("_check", _heads), feed("select", select), feed("acknowledged", hear):
        with patch.object(Acceptance, "_is_new", is_new):
            yield


@seeded_bug(Family.WIPES, "I1")
def received_counted_as_durable() -> Iterator[None]:
    """A node reports as durable what it has only received."""

    def durable_vector(pipeline: CommitPath) -> Vector:
        return pipeline.received_vector()

    with patch.object(CommitPath, "durable_vector", durable_vector):
        yield


@seeded_bug(Family.CUTS, "I21", "I13")
def relayed_records_refused() -> Iterator[None]:
    """A node that has once followed an origin at its own node wants its records from no other node any more."""
    direct_for = LinkRegistry.direct_for

    def direct_for_ever(registry: LinkRegistry, peer: str) -> tuple[Origin, ...]:
        known = {*getattr(registry, "planted", ()), *direct_for(registry, peer)}
        setattr(registry, "planted", known)  # noqa: B010  # no attribute of the product
        return tuple(sorted(origin for origin in known if origin.node != peer))

    with patch.object(LinkRegistry, "direct_for", direct_for_ever):
        yield


@seeded_bug(Family.ALL, "I13", "I21", seed=1)
def unknown_records_not_relayed() -> Iterator[None]:
    """A node keeps from its peers what it does not understand: here, how often messages have failed."""
    select = JournalFeed.select

    def select_known(
        feed: JournalFeed, read: Read, durable_end: int, base: Vector
    ) -> tuple[list[Gap | Hole | Batches], int | None]:
        known = [one for one in read if all(record.kind != RecordKind.ATTEMPTS for record in batch_records(one[2]))]
        return select(feed, known, durable_end, base)

    with patch.object(JournalFeed, "select", select_known):
        yield


@seeded_bug(Family.CUTS, "I21", seed=2)
def interest_lost_on_reconnect() -> Iterator[None]:
    """Interest is published on the first link with a peer, and not on the next."""
    begin_telling = Routes._start_publisher

    def begin_once(routes: Routes, neighbour: Neighbour) -> None:
        known: set[Origin] = getattr(routes, "planted", set())
        if neighbour.origin not in known:
            begin_telling(routes, neighbour)
        setattr(routes, "planted", known | {neighbour.origin})  # noqa: B010  # no attribute of the product

    with patch.object(Routes, "_start_publisher", begin_once):
        yield


@seeded_bug(Family.CUTS, "topic", seed=3)
def topics_delivered_twice() -> Iterator[None]:
    """A topic message that comes by two routes is delivered twice."""

    def accept(router: TopicRouter, message: Message, out: Outcome) -> None:
        router.publish(message, out)

    with patch.object(TopicRouter, "accept", accept):
        yield


@seeded_bug(Family.CUTS, "I13")
def last_value_by_arrival() -> Iterator[None]:
    """The last value of a topic is the one that came last, which is another one on each side of a cut."""

    calls = count(1)
    with patch.object(retained, "_version", lambda message: next(calls)):
        yield


@seeded_bug(Family.CUTS, "I5", seed=2)
def seen_messages_delivered_again() -> Iterator[None]:
    """A log is read from where a subscriber's vector points to, and what it has seen behind that comes again."""

    def is_news(followers: FanoutSubscribers, subscription: Subscription, origin: Origin, sequence: int) -> bool:
        return True

    with patch.object(FanoutSubscribers, "_is_unseen", is_news):
        yield


@seeded_bug(Family.WIPES, "I1", "I3", "I5", "I13")
def known_records_appended_again() -> Iterator[None]:
    """A batch that ends where it is known already is appended once more."""
    judge = Acceptance._is_new

    def is_new(acceptance: Acceptance, head: BatchHead, have: Vector) -> bool:
        return judge(acceptance, head, have) or head.last == have.get(head.origin, 0)

    with patch.object(Acceptance, "_is_new", is_new), patch.object(Journal, "_check", _heads):
        yield


def _heads(journal: Journal, batches: list[bytes]) -> list[BatchHead]:
    found = map(read_head, batches)
    return [head for head in found if head is not None]
