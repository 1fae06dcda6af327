"""Random histories of appends, checkpoints, failing calls and power cuts, compared with a plain model."""

from random import Random

import pytest

from qmq.errors import LogBroken
from qmq.model.dots import Dot, Origin, Vector, covers
from qmq.storage.fanouts.log import FANOUT_DIRECTORY, directory_name
from qmq.storage.format.batch import read_head
from qmq.storage.store import Store
from tests.fakes.disk import MemoryDisk

from .rig import NOW, Expected, Writer, all_attempts, all_rows, append, fanout_all, open_small, own_messages


class History:
    """One node's life: `log` is every batch that may be on the disk, in order; `acknowledged` what must be."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk()
        self.log: list[bytes] = []
        self.acknowledged: Vector = {}
        self.incarnation = 0
        self.start()

    def start(self) -> None:
        """Open, and compare everything with the model of what the vector says has survived."""
        self.store = open_small(self.disk)
        vector = self.store.recovered.vector
        assert covers(vector, self.acknowledged)
        self.acknowledged = vector  # What recovery reports counts as durable from then on.
        self.log = [data for data in self.log if self.survived(data, vector)]
        self.compare(self.store)
        self.incarnation += 1
        origins = [Origin("b", 1), Origin("c", 1)]
        self.writers = [Writer(origin, vector.get(origin, 0)) for origin in origins]
        own = Writer(Origin("a", self.incarnation))
        own.record(99, b"a kind of the future")
        self.writers.append(own)
        self.append([own.batch()])

    def survived(self, data: bytes, vector: Vector) -> bool:
        head = read_head(data)
        assert head is not None
        return head.last <= vector.get(head.origin, 0)

    def compare(self, store: Store) -> None:
        expected = Expected(self.log)
        recovered = store.recovered
        assert recovered.vector == expected.vector
        own = {dot: body for dot, body in expected.live.items() if dot.origin.node == "a"}
        assert dict(own_messages(store)) == own
        assert recovered.tombstones == expected.tombstones
        for destination in ("/fanout/f", "/fanout/g"):
            assert fanout_all(store, destination) == expected.fanout.get(destination, [])
            assert store.fanout_info(destination).records == len(expected.fanout.get(destination, []))

    def append(self, batches: list[bytes]) -> None:
        self.log.extend(batches)
        append(self.store, *batches)
        for data in batches:
            head = read_head(data)
            assert head is not None
            self.acknowledged[head.origin] = head.last

    def step(self) -> None:
        rng = self.random.randint(0, 9)
        if rng < 7:
            self.append([self.some_batch(writer) for writer in self.writers if self.random.randint(0, 1)])
        else:
            members = {"b": self.store.journal.vector()} if self.random.randint(0, 1) else {"b": {}}
            self.store.checkpoint(self.store.journal.end, NOW, members)

    def some_batch(self, writer: Writer) -> bytes:
        for _ in range(self.random.randint(1, 4)):
            what = self.random.randint(0, 8)
            body = b"x" * self.random.randint(0, 60)
            if what < 2:
                writer.publish("/queue/q", body)
            elif what < 4:
                writer.publish(self.random.choice(["/fanout/f", "/fanout/g"]), body)
            elif what == 8:
                # Also messages that have not come yet.
                before = {w.origin: self.random.randint(0, w.have + 3) for w in self.writers}
                before[writer.origin] = min(before[writer.origin], writer.have)
                writer.delete(self.random.choice(["/fanout/f", "/fanout/g"]), before)
            else:
                origin = self.random.choice([w.origin for w in self.writers])
                dot = Dot(origin, self.random.randint(1, 20))
                if what < 6:
                    writer.settle("/queue/q", [dot])
                elif what < 7 and dot != Dot(writer.origin, writer.have + 1):
                    writer.dead("/queue/q", dot, body, "/queue/q")
                else:
                    writer.attempts("/queue/q", {dot: self.random.randint(1, 9)})
        return writer.batch()

    def run(self) -> None:
        self.disk.fail_at(self.random.randint(0, 60))
        try:
            for _ in range(12):
                self.step()
        except LogBroken:
            pass
        if self.random.randint(0, 2):
            self.disk.crash(self.random)
        else:
            self.disk.stop()
        # Recovery itself is cut too, at a place of its own, and then left to finish.
        self.disk.fail_at(self.random.randint(0, 12))
        try:
            self.start()
        except LogBroken:
            self.disk.crash(self.random)
            self.start()


@pytest.mark.parametrize("seed", range(150))
def test_whatever_was_acknowledged_survives_any_crash_and_nothing_else_is_made_up(seed: int) -> None:
    history = History(seed)

    for _ in range(4):
        history.run()

    history.disk.heal()
    history.disk.stop()
    history.start()
    history.store.checkpoint(history.store.journal.end, NOW, {})
    expected = Expected(history.log)
    assert all_rows(history.store) == expected.live
    assert all_attempts(history.store) == expected.attempts
    assert history.store.queues.tombstones() == expected.tombstones
    names = sorted(directory_name(destination) for destination, kept in expected.fanout.items() if kept)
    assert history.disk.names(FANOUT_DIRECTORY) == names
