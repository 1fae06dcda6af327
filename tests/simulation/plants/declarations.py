"""Mistakes with queues that are declared and deleted, and with copies of one message."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from unittest.mock import patch

from qmq import record_codec
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import Message
from qmq.definitions.definition import Key
from qmq.model.dots import Origin
from qmq.settings.definitions.deleted_queues import DeletedQueues
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from tests.simulation.operations import DECLARED
from tests.simulation.plan import Family
from tests.simulation.plants.registry import seeded_bug
from tests.simulation.routing import COPIED


@seeded_bug(Family.OPERATORS, "L3", seed=17)
def declaration_resurrected() -> Iterator[None]:
    """A node that starts declares the queues of its last life again, before it has heard what became of them."""
    begin = DeletedQueues.begin

    def begin_and_declare(deleted: DeletedQueues) -> None:
        begin(deleted)
        definitions = deleted._definitions
        found = [definitions.table.get(Key("queue", queue)) for queue in DECLARED]
        changes = {one.key: one.value for one in found if one is not None}
        if changes:
            deleted._node.spawn(partial(definitions.change, changes))

    with patch.object(DeletedQueues, "begin", begin_and_declare):
        yield


@seeded_bug(Family.OPERATORS, "L2", seed=34)
def deletions_of_peers_forgotten() -> Iterator[None]:
    """A node does not keep in mind which queues others have deleted: it drops messages for its own deletions only."""
    drop = DeletedQueues.drop

    def drop_own(deleted: DeletedQueues, queues: Iterable[str]) -> None:
        table, origin = deleted._definitions.table, deleted._engine.broker.origin
        marks = {queue: table.by_key.get(Key("queue", queue)) for queue in queues}
        drop(deleted, [queue for queue, mark in marks.items() if mark is not None and mark.version.origin == origin])

    with patch.object(DeletedQueues, "drop", drop_own):
        yield


@seeded_bug(Family.OPERATORS, "L4", seed=2)
def exclusive_queue_left_behind() -> Iterator[None]:
    """A node that was killed does not delete the exclusive queues of its earlier lives."""
    is_gone = ExclusiveQueues._has_ended

    def is_gone_in_this_life(queues: ExclusiveQueues, owner: str) -> bool:
        return owner.rpartition("/")[0] == str(queues._broker.origin) and is_gone(queues, owner)

    with patch.object(ExclusiveQueues, "_has_ended", is_gone_in_this_life):
        yield


@seeded_bug(Family.OPERATORS, "B3", seed=30)
def copies_split_over_two_batches() -> Iterator[None]:
    """A batch ends between two copies of one message."""
    encode = record_codec.encode_records

    def encode_split(
        origin: Origin, outcomes: list[Outcome], shares: bool, ready: Mapping[int, record_codec.Packing]
    ) -> list[bytes]:
        batches: list[bytes] = []
        part: list[Outcome] = []
        for out in outcomes:
            copies = [one for one in out.records if isinstance(one, Message) and one.envelope.destination in COPIED]
            if len(copies) > 1:
                at = out.records.index(copies[1])
                first = Outcome(now_us=out.now_us)
                first.records = out.records[:at]
                last = Outcome(now_us=out.now_us)
                last.records = out.records[at:]
                batches += encode(origin, [*part, first], shares, ready)
                part = [last]
            else:
                part.append(out)
        return batches + encode(origin, part, shares, ready)

    with patch.object(record_codec, "encode_records", encode_split):
        yield
