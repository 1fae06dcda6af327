"""Mistakes with messages that fail."""

from collections.abc import Iterator
from unittest.mock import patch

from qmq.broker.message import Message
from qmq.dots import Dot
from qmq.journal import Replay
from qmq.storage.failure_records import unpack_dead
from qmq.storage.ports import QueueRow
from tests.simulation.plan import Family
from tests.simulation.plants.registry import plant


@plant(Family.CRASHES, "cap", seed=40)
def failures_forgotten() -> Iterator[None]:
    """A message that comes back from the queue store has never failed."""
    real = Replay.message_of_row

    def message_of_row(replay: Replay, row: QueueRow) -> Message | None:
        return real(replay, row._replace(attempts=0))

    with patch.object(Replay, "message_of_row", message_of_row):
        yield


@plant(Family.CRASHES, "burial", seed=40)
def buried_and_kept() -> Iterator[None]:
    """A checkpoint takes the letter out of a DEAD record, and not the settle."""

    def only_the_letter(body: bytes) -> tuple[str, Dot, bytes]:
        _, dot, letter = unpack_dead(body)
        return "/queue/nowhere", dot, letter

    with patch("qmq.storage.reduce.unpack_dead", only_the_letter):
        yield
