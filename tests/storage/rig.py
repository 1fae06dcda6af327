"""Words for building logs in tests: a writer per origin, and what a log of batches comes to, computed the plain way."""

import os
import resource
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import msgpack

from qmq.model.deletions import Deletion
from qmq.model.dots import Dot, Origin, Vector, merge
from qmq.storage.format.batch import (
    BATCH_VERSION,
    SHARED_VERSION,
    batch_records,
    encode_batch,
    read_head,
    record_slices,
    verify_batch,
)
from qmq.storage.format.delete_record import pack_delete, unpack_delete
from qmq.storage.format.failure_records import pack_attempts, pack_dead, unpack_attempts, unpack_dead
from qmq.storage.format.record import RecordKind, pack_dots, pack_envelope, pack_record, pack_reference, unpack_dots
from qmq.storage.format.segment import FOOTER_MAGIC, Footer, encode_footer
from qmq.storage.format.settings import StoreSettings
from qmq.storage.queues.choice import stored_rows
from qmq.storage.store import Store
from tests.fakes.disk import MemoryDisk
from tests.fakes.store import open_memory_store

A = Origin("a", 0xA1)
B = Origin("b", 0xB1)
C = Origin("c", 0xC1)
NOW = 1_700_000_000_000_000
TRAILER_BYTES = 24
SMALL = StoreSettings(segment_bytes_max=1500, journal_keep_bytes=0, reserve_bytes=0)


class Writer:
    """Packs records of one origin, sequence after sequence."""

    def __init__(self, origin: Origin, have: int = 0) -> None:
        self.origin = origin
        self.have = have
        self._open: list[bytes] = []
        self._version = BATCH_VERSION

    def publish(self, destination: str, body: bytes, flags: int = 0, headers: bytes = b"k:v\n") -> Dot:
        return self._add(RecordKind.PUBLISH, destination, headers, body, flags)

    def copies(self, body: bytes, *destinations: str) -> list[Dot]:
        """One message to each of `destinations`, with its body once."""
        dots = [self.publish(destinations[0], body)]
        for back, destination in enumerate(destinations[1:], 1):
            self.have += 1
            envelope = pack_envelope(destination, b"k:v\n")
            self._open.append(pack_reference(self.have, NOW + self.have, 0, envelope, back))
            self._version = SHARED_VERSION
            dots.append(Dot(self.origin, self.have))
        return dots

    def settle(self, queue: str, dots: Iterable[Dot]) -> Dot:
        return self._add(RecordKind.SETTLE, queue, b"", pack_dots(dots), 0)

    def attempts(self, queue: str, counts: Mapping[Dot, int]) -> Dot:
        return self._add(RecordKind.ATTEMPTS, queue, b"", pack_attempts(counts.items()), 0)

    def dead(self, queue: str, dot: Dot, letter: bytes, target: str = "/queue/dead-letters") -> Dot:
        """`dot` of `queue` is done with, and `letter` accepted in `target`."""
        return self._add(RecordKind.DEAD, target, b"why:x\n", pack_dead(queue, dot, letter), 0)

    def delete(self, fanout: str, before: Vector) -> Dot:
        return self._add(RecordKind.DELETE, fanout, b"", pack_delete(before), 0)

    def record(self, kind: int, body: bytes) -> Dot:
        return self._add(kind, "", b"", body, 0)

    def batch(self, attributes: int = 0) -> bytes:
        """Everything since the last batch."""
        first = self.have - len(self._open) + 1
        times = (NOW + first, NOW + self.have)
        data = encode_batch(self.origin, self._open, first, self.have, *times, attributes, self._version)
        self._open, self._version = [], BATCH_VERSION
        return data

    def published(self, destination: str, *bodies: bytes) -> bytes:
        """A batch with one message per body."""
        for body in bodies:
            self.publish(destination, body)
        return self.batch()

    def _add(self, kind: int, destination: str, headers: bytes, body: bytes, flags: int) -> Dot:
        self.have += 1
        envelope = pack_envelope(destination, headers)
        self._open.append(pack_record(self.have, NOW + self.have, kind, flags, envelope, body))
        return Dot(self.origin, self.have)


def without_references(data: bytes) -> bytes:
    """The same records as a batch of version 1."""
    head = verify_batch(data)
    times = (head.first_us, head.last_us)
    return encode_batch(head.origin, record_slices(data), head.first, head.last, *times, head.attributes)


class Expected:
    """What a list of batches comes to, without any cleverness."""

    def __init__(self, batches: Iterable[bytes]) -> None:
        self.vector: Vector = {}
        self.live: dict[Dot, bytes] = {}
        self.tombstones: set[Dot] = set()
        self.fanout: dict[str, list[tuple[Dot, bytes]]] = {}
        self.attempts: dict[Dot, int] = {}
        self.deleted: dict[str, Vector] = {}
        for data in batches:
            head = read_head(data)
            assert head is not None
            for record in batch_records(data):
                self._take(Dot(head.origin, record.sequence), record.kind, record.destination, record.body)
        for fanout, before in self.deleted.items():
            kept = [one for one in self.fanout.get(fanout, []) if one[0].sequence > before.get(one[0].origin, 0)]
            self.fanout[fanout] = kept

    def _take(self, dot: Dot, kind: int, destination: str, body: bytes) -> None:
        self.vector[dot.origin] = dot.sequence
        if kind == RecordKind.SETTLE:
            for settled in unpack_dots(body):
                self._settle(settled)
        elif kind == RecordKind.DEAD:
            _, settled, body = unpack_dead(body)
            self._settle(settled)
            kind = RecordKind.PUBLISH
        elif kind == RecordKind.ATTEMPTS:
            for failed, count in unpack_attempts(body).items():
                if failed in self.live:
                    self.attempts[failed] = max(count, self.attempts.get(failed, 0))
        if kind == RecordKind.DELETE:
            merge(self.deleted.setdefault(destination, {}), unpack_delete(body))
        if kind != RecordKind.PUBLISH:
            return
        if destination.startswith("/queue/"):
            if dot in self.tombstones:
                self.tombstones.discard(dot)
            else:
                self.live[dot] = body
        elif destination.startswith("/fanout/"):
            self.fanout.setdefault(destination, []).append((dot, body))

    def _settle(self, dot: Dot) -> None:
        self.attempts.pop(dot, None)
        if self.live.pop(dot, None) is None and dot.sequence > self.vector.get(dot.origin, 0):
            self.tombstones.add(dot)


def like_an_index(batches_end: int = 0, version: int = 1, index: bytes | None = None) -> bytes:
    """What a client may end a body with: an index that lists nothing, or those bytes, with a valid trailer."""
    whole = encode_footer(Footer(batches_end, [], {}, {}, {}))
    listed = whole[:-TRAILER_BYTES] if index is None else index
    sealed = struct.pack(">QIHH", batches_end, len(listed), version, 0)
    return listed + sealed + zlib.crc32(listed + sealed).to_bytes(4, "big") + FOOTER_MAGIC


LIKE_AN_INDEX = {
    "empty": like_an_index(),
    "no map": like_an_index(index=msgpack.packb(7)),
    "later": like_an_index(version=2),
}


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Inside, this process has open as many files as it may."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, before[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def open_small(disk: MemoryDisk, settings: StoreSettings = SMALL) -> Store:
    return open_memory_store(disk, node="a", settings=settings)


def journal_batches(store: Store) -> list[bytes]:
    """Every batch the journal serves, in order."""
    found: list[bytes] = []
    position = store.journal.start
    while batches := store.journal.read(position, 700):
        for start, head, data in batches:
            found.append(data)
            position = start + head.size
    return found


def fanout_all(store: Store, destination: str, bytes_max: int = 300) -> list[tuple[Dot, bytes]]:
    """One reading of `destination` from its start to its end."""
    found: list[tuple[Dot, bytes]] = []
    position = store.fanout_start(destination)
    at_end = False
    while not at_end:
        records, position, at_end = store.fanout_page(destination, position, bytes_max)[:3]
        found.extend((Dot(origin, record.sequence), record.body) for origin, record in records)
    return found


def own_messages(store: Store) -> list[tuple[Dot, bytes]]:
    """What node a has to serve after opening: from the queue store, and from the journal what had no room there."""
    settled = {dot for dots in store.recovered.settled.values() for dot in dots}
    rows = [(row.dot, row.body) for row in stored_rows(store.queues, "a") if row.dot not in settled]
    return rows + [(dot, record.body) for dot, record in store.recovered.messages]


def all_attempts(store: Store) -> dict[Dot, int]:
    """What the queue store knows of failures of messages of nodes a, b and c."""
    rows = [row for node in ("a", "b", "c") for row in stored_rows(store.queues, node)]
    return {row.dot: row.attempts for row in rows if row.attempts}


def all_rows(store: Store) -> dict[Dot, bytes]:
    """The queue store's messages of nodes a, b and c."""
    return {row.dot: row.body for node in ("a", "b", "c") for row in stored_rows(store.queues, node)}


def append(store: Store, *batches: bytes) -> None:
    """Append, and let readers go by the deletions among it, as the node does."""
    store.journal.append(batches)
    for data in batches:
        head = read_head(data)
        assert head is not None
        for record in batch_records(data):
            if record.kind == RecordKind.DELETE:
                dot = Dot(head.origin, record.sequence)
                before = unpack_delete(record.body)
                store.recovered.deletions.add(Deletion(record.destination, dot, record.timestamp_us, before))
