"""Mistakes with what operators do: definitions, permissions, and jobs that settle messages in bulk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any
from unittest.mock import patch
from weakref import WeakValueDictionary

from qmq.access.rights import AccessTable
from qmq.admin.bulk_jobs import _Run
from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.queues.bulk_settlement import BulkSettlement
from qmq.definitions.table import DefinitionTable, Obsolete
from qmq.definitions.tombstones import TombstoneRounds
from qmq.errors import Refused
from qmq.model.dots import Dot
from tests.simulation.plan import Family
from tests.simulation.plants.registry import seeded_bug
from tests.simulation.routing import BOUND


@seeded_bug(Family.OPERATORS, "D1", seed=123)
def tombstone_dropped_early() -> Iterator[None]:
    """A node forgets a deletion with its next checkpoint, whatever the others know."""

    def obsolete(rounds: TombstoneRounds, table: DefinitionTable, *_: object) -> Obsolete:
        return Obsolete(table.tombstones())

    with patch.object(TombstoneRounds, "obsolete", obsolete):
        yield


@seeded_bug(
    Family.OPERATORS,
    "D1",
    found_by="tests/definitions/test_table.py::"
    "test_a_change_older_than_a_forgotten_tombstone_is_no_news_and_a_later_one_is",
)
def deletions_forgotten_for_good() -> Iterator[None]:
    """A node that has forgotten a deletion takes the deleted definition from a peer that reads old journals."""
    with patch("qmq.definitions.table.is_covered", return_value=False):
        yield


@seeded_bug(Family.OPERATORS, "P1", "P2", seed=3)
def permission_cached() -> Iterator[None]:
    """A change of permissions counts for the next login of a user, and not for the sessions that there are."""

    real = AccessTable.change

    def change(access: AccessTable, *given: Any, **said: Any) -> None:
        kept, access._rights = access._rights, WeakValueDictionary()
        real(access, *given, **said)
        access._rights = kept

    with patch.object(AccessTable, "change", change):
        yield


@seeded_bug(Family.OPERATORS, "O2", "L1", seed=31)
def purge_settles_later_arrivals() -> Iterator[None]:
    """A purge ends with all that its queue holds by then, and not with what was there when it began."""
    real = _Run.all

    async def all_that_is_there(run: _Run) -> None:
        await real(run)
        engine, job = run._engine, run._job
        if job.verb in ("purge", "delete") and not job.selector and not job.is_dry_run:
            out = Outcome(now_us=engine.environment.now_us())
            engine.broker.bulk_settlement.purge(engine.broker.bulk_settlement.in_memory(job.queue), out)
            engine.path.submit(out)
            await engine.path.flushed()

    with patch.object(_Run, "all", all_that_is_there):
        yield


@contextmanager
def _copied_first(is_meant: Callable[[str], bool]) -> Iterator[None]:
    """Moves to targets that are meant accept copies at once, and settle all that has moved at the end of the job."""
    moved: dict[BulkSettlement, dict[str, list[Dot]]] = {}
    move, finish = BulkSettlement.move, BulkSettlement.finish

    def copy(bulk: BulkSettlement, messages: list[Message], target: str, out: Outcome) -> tuple[int, Refused | None]:
        if not is_meant(target):
            return move(bulk, messages, target, out)
        settles = out.settles
        out.settles = {}
        letters = bulk._queues.redelivery.dead_letters
        accept_copy = MethodType(_accept_copy, letters._publish.__self__)  # type: ignore[attr-defined]
        with patch.object(letters, "_publish", accept_copy):
            done = move(bulk, messages, target, out)
        for queue, dots in out.settles.items():
            moved.setdefault(bulk, {}).setdefault(queue, []).extend(dots)
        out.settles = settles
        return done

    def settle_and_finish(bulk: BulkSettlement, name: str, out: Outcome, *, is_deleted: bool = False) -> None:
        for queue, dots in moved.pop(bulk, {}).items():
            out.settles.setdefault(queue, []).extend(dots)
        finish(bulk, name, out, is_deleted=is_deleted)

    with patch.object(BulkSettlement, "move", copy), patch.object(BulkSettlement, "finish", settle_and_finish):
        yield


def _accept_copy(
    broker: Broker, letters: list[Envelope], body: bytes, out: Outcome, queue: str, dot: Dot | None
) -> int:
    for letter in letters:
        broker.send(letter, body, out.now_us, out)
    return 0


@seeded_bug(Family.OPERATORS, "I2", "O3", seed=30)
def move_as_two_records() -> Iterator[None]:
    """A move accepts copies, and what was copied is settled by a record of a later batch."""
    with _copied_first(bool):
        yield


@seeded_bug(Family.OPERATORS, "I2", "O3", seed=3)
def redrive_sends_twice_on_retry() -> Iterator[None]:
    """A redrive that is interrupted begins again with dead letters that it has sent."""
    with _copied_first(lambda target: not target):
        yield


@seeded_bug(Family.OPERATORS, "B1", seed=30)
def binding_applied_twice() -> Iterator[None]:
    """A peer that receives a copy copies it, too."""
    accept = Broker.accept
    copied: set[tuple[str, bytes]] = set()

    def accept_and_copy(broker: Broker, message: Message, out: Outcome) -> None:
        accept(broker, message, out)
        copy = message.envelope.destination, message.body
        if copy[0] in BOUND and copy not in copied:
            copied.add(copy)
            broker.send(message.envelope, message.body, out.now_us, out)

    with patch.object(Broker, "accept", accept_and_copy):
        yield
