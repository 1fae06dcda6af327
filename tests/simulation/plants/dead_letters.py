"""Mistakes with messages that fail."""

from collections.abc import Iterator
from types import MethodType
from typing import Any
from unittest.mock import patch

from qmq import record_codec as journal
from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.messages.peer_clocks import PeerClocks
from qmq.broker.messages.rules import DEAD_LETTERS
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.redelivery import Redelivery
from qmq.model.dots import Dot, Origin
from qmq.record_codec import Replay
from qmq.storage.format.failure_records import unpack_dead
from qmq.storage.format.queue_store import QueueRow
from tests.simulation.plan import Family
from tests.simulation.plants.registry import ANY_CALL, seeded_bug


@seeded_bug(Family.CRASHES, "cap", seed=41)
def failure_counts_lost() -> Iterator[None]:
    """A message that comes back from the queue store has never failed."""
    real = Replay.message_of_row

    def message_of_row(replay: Replay, row: QueueRow) -> Message | None:
        return real(replay, row._replace(attempts=0))

    with patch.object(Replay, "message_of_row", message_of_row):
        yield


@seeded_bug(Family.CRASHES, "burial", seed=42)
def dead_letter_without_settle() -> Iterator[None]:
    """A checkpoint takes the letter out of a DEAD record, and not the settle."""

    def only_the_letter(body: bytes) -> tuple[str, Dot, bytes]:
        _, dot, letter = unpack_dead(body)
        return "/queue/nowhere", dot, letter

    with patch("qmq.storage.checkpoints.compaction.unpack_dead", only_the_letter):
        yield


@seeded_bug(Family.CRASHES, "burial", found_by=ANY_CALL)
def dead_letter_and_settle_in_two_batches() -> Iterator[None]:
    """A letter is accepted and its message settled by two records in two batches, and a crash comes between."""

    def accept_letter(
        broker: Broker, envelope: Envelope, body: bytes, out: Outcome, queue: str, dot: Dot | None
    ) -> int:
        broker.send(envelope, body, out.now_us, out)
        return 0

    encode = journal.encode_records

    def encode_apart(origin: Origin, outcomes: list[Outcome], shares: bool) -> list[bytes]:
        records = [record for out in outcomes for record in out.records]
        if not any(isinstance(one, Message) and one.envelope.destination == DEAD_LETTERS for one in records):
            return encode(origin, outcomes, shares)
        with patch.object(journal, "OUTCOME_BYTES_MAX", 0), patch.object(journal, "BATCH_BYTES_TARGET", 1):
            return encode(origin, outcomes, shares)

    begin = Broker.__init__

    def begin_in_two(broker: Broker, *arguments: Any, **settings: Any) -> None:
        begin(broker, *arguments, **settings)
        broker.queues.redelivery.dead_letters._publish = MethodType(accept_letter, broker)  # type: ignore[method-assign]

    with patch.object(Broker, "__init__", begin_in_two), patch.object(journal, "encode_records", encode_apart):
        yield


@seeded_bug(
    Family.TAKEOVERS,
    "burial",
    found_by="tests/mesh/membership/test_takeover.py::"
    "test_a_message_that_fails_at_its_owner_while_another_serves_it_is_one_dead_letter",
)
def dead_lettered_without_lease() -> Iterator[None]:
    """A message that is at its limit is dead-lettered at once, although another node may have done so meanwhile."""

    def must_wait(redelivery: Redelivery, queue: Queue, message: Message) -> bool:
        return False

    with patch.object(Redelivery, "_must_wait", must_wait):
        yield


@seeded_bug(
    Family.TAKEOVERS,
    "I22",
    found_by="tests/mesh/membership/test_takeover.py::test_times_of_messages_mean_the_same_when_another_serves_them",
)
def expiry_by_local_clock() -> Iterator[None]:
    """When a message of another node expires is read from the clock of the node that hands it out."""

    def apart_us(clocks: PeerClocks, node: str) -> int | None:
        return 0

    with patch.object(PeerClocks, "apart_us", apart_us):
        yield
