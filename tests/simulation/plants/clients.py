"""Mistakes with clients that move from node to node."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from unittest.mock import patch

import msgpack

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.fanouts.durable_subscriptions import DurableSubscriptions
from qmq.broker.messages.dedup import Dedup, dedup_key
from qmq.broker.messages.message import Message
from qmq.broker.queues.state.first_attempts import FirstAttempts
from qmq.mesh.peers.dedup_query import DedupQuery
from qmq.model.cursors import Move
from qmq.storage.checkpoints.compaction import Compaction
from qmq.storage.format.batch import BatchHead, Unpacked
from tests.simulation.plan import Family
from tests.simulation.plants.registry import seeded_bug


@seeded_bug(Family.NONE, "I5", "I2", seed=2)
def dedup_query_skipped() -> Iterator[None]:
    """What is tried again is appended unless this node itself has it."""

    @asynccontextmanager
    async def of(dedup_query: DedupQuery, keys: Sequence[bytes]) -> AsyncIterator[set[bytes]]:
        yield set()

    with patch.object(DedupQuery, "of", of):
        yield


@seeded_bug(Family.CRASHES, "I5", "I2")
def dedup_ids_of_peers_ignored() -> Iterator[None]:
    """A node knows only the messages that it has taken from its own clients."""
    accept = Broker.accept

    def accept_without_id(broker: Broker, message: Message, out: Outcome) -> None:
        learn, Dedup.learn = Dedup.learn, lambda *_: None  # type: ignore[method-assign]
        try:
            accept(broker, message, out)
        finally:
            Dedup.learn = learn  # type: ignore[method-assign]

    with patch.object(Broker, "accept", accept_without_id):
        yield


@seeded_bug(Family.CRASHES, "I5", "I2")
def dedup_ids_lost_at_restart() -> Iterator[None]:
    """Nothing is learned from the journal when a node starts."""
    with patch("qmq.node.node.replay_ids", lambda *_: None):
        yield


@seeded_bug(Family.STALE, "I26", seed=0)
def first_attempts_kept() -> Iterator[None]:
    """Both records of a message that was tried again elsewhere are handed out."""
    with patch.object(FirstAttempts, "is_superseded", lambda *_: False):
        yield


@seeded_bug(Family.STALE, "I1", seed=0)
def retries_settled_too() -> Iterator[None]:
    """Whatever comes or is read while a retry of it is known is settled, the retry as well."""
    with patch("qmq.broker.queues.state.first_attempts.is_retry", lambda headers: False):
        yield


@seeded_bug(Family.CRASHES, "I13", seed=45)
def duplicates_dropped_at_merge() -> Iterator[None]:
    """Of two messages with one dedup id a node keeps the one that it hears of first, which is another one elsewhere."""
    take = Compaction.take

    def take_first(reduction: Compaction, position: int, head: BatchHead, data: bytes) -> list[Unpacked]:
        records = take(reduction, position, head, data)
        for name, entries in reduction.fanouts.items():
            known: set[bytes] = set()
            for entry in list(entries):
                _, _, _, _, headers, _ = msgpack.unpackb(entry.packed)
                key = dedup_key(name, headers)
                if key is not None and key in known:
                    entries.remove(entry)
                elif key is not None:
                    known.add(key)
        return records

    with patch.object(Compaction, "take", take_first):
        yield


@seeded_bug(Family.NONE, "I6", "I13", seed=2)
def cursors_of_peers_ignored() -> Iterator[None]:
    """What peers say that a durable subscription is done with is not taken into account."""
    accept = DurableSubscriptions.accept

    def accept_beginnings(durable_subscriptions: DurableSubscriptions, move: Move, out: Outcome) -> None:
        if move.start is not None:
            move.done = {}
            accept(durable_subscriptions, move, out)

    with patch.object(DurableSubscriptions, "accept", accept_beginnings):
        yield


@seeded_bug(Family.NONE, "I6", "I13")
def in_flight_counts_as_settled() -> Iterator[None]:
    """A durable subscription that ends leaves nothing of what was in flight to it."""
    detach = DurableSubscriptions.detach

    def detach_done(durable_subscriptions: DurableSubscriptions, subscription, out: Outcome) -> None:  # type: ignore[no-untyped-def]
        attachment = subscription.durable
        if attachment is not None:
            for handed in subscription.in_flight.values():
                attachment.claim(handed.claims)
        detach(durable_subscriptions, subscription, out)

    with patch.object(DurableSubscriptions, "detach", detach_done):
        yield
