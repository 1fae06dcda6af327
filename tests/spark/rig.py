"""Data directories as a node writes them: segments of batches, sealed or not, made of plain lists of records."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qmq.model.dots import Dot, Origin, Vector
from qmq.storage.fanouts.log import FANOUT_DIRECTORY, directory_name
from qmq.storage.format.batch import REST, SPARSE, encode_batch, verify_batch
from qmq.storage.format.record import RecordKind, pack_dots, pack_envelope, pack_record
from qmq.storage.format.segment import FANOUT, JOURNAL, encode_footer, encode_head, make_footer, segment_name

A = Origin("a", 0xA1)
B = Origin("b", 0xB1)
START_US = 1_700_000_000_000_000


def record(
    sequence: int,
    body: bytes = b"",
    destination: str = "/queue/jobs",
    *,
    headers: bytes = b"",
    kind: int = RecordKind.PUBLISH,
    flags: int = 0,
    at_us: int | None = None,
) -> bytes:
    """A packed record; the time grows with the sequence, a ms each, unless it is given."""
    time = START_US + sequence * 1000 if at_us is None else at_us
    return pack_record(sequence, time, kind, flags, pack_envelope(destination, headers), body)


def messages(first: int, last: int, destination: str = "/queue/jobs") -> list[bytes]:
    return [record(number, b"body %d" % number, destination) for number in range(first, last + 1)]


def settle(sequence: int, *dots: Dot, queue: str = "/queue/jobs") -> bytes:
    return record(sequence, pack_dots(dots), queue, kind=RecordKind.SETTLE)


def batch(origin: Origin, first: int, records: Sequence[bytes], last: int | None = None) -> bytes:
    """One batch; with `last` a sparse one, whose records have other sequences than first, first + 1, …"""
    end = first + len(records) - 1 if last is None else last
    attributes = 0 if last is None else SPARSE
    return encode_batch(origin, list(records), first, end, START_US + first * 1000, START_US + end * 1000, attributes)


def rest(origin: Origin, first: int, last: int, records: Sequence[bytes]) -> bytes:
    """What stands in a journal for `first` to `last` when only `records` of them, the last one included, were left."""
    times = (START_US + first * 1000, START_US + last * 1000)
    return encode_batch(origin, list(records), first, last, *times, SPARSE | REST)


def split(origin: Origin, first: int, last: int, size: int, destination: str = "/queue/jobs") -> list[bytes]:
    """Batches of `size` messages each."""
    return [
        batch(origin, start, messages(start, min(start + size - 1, last), destination))
        for start in range(first, last + 1, size)
    ]


class Journal:
    """Writes the segments of one log. Positions go on from segment to segment as the node's do."""

    def __init__(self, directory: Path, node: str, content: int = JOURNAL, base: int = 0) -> None:
        self.directory = directory
        self.node = node
        self._content = content
        self._end = base
        directory.mkdir(parents=True, exist_ok=True)

    def segment(self, batches: Iterable[bytes], vector: Vector | None = None, *, sealed: bool = True) -> Path:
        """One segment file with these batches; `vector` is what the log had before.

        One that is sealed is followed by another, which is empty until the next call, as on a node.
        """
        have = dict(vector or {})
        head = encode_head(self._end, self._content, self.node, START_US, have)
        path = self.directory / segment_name(self._end)
        offset = len(head)
        placed = []
        for data in batches:
            batch_head = verify_batch(data)
            placed.append((offset, batch_head, data))
            offset += len(data)
            have[batch_head.origin] = batch_head.last
        whole = head + b"".join(data for _, _, data in placed)
        if sealed:
            whole += encode_footer(make_footer(offset, placed))
        path.write_bytes(whole)
        self._end += offset
        if sealed:
            after = encode_head(self._end, self._content, self.node, START_US, have)
            (self.directory / segment_name(self._end)).write_bytes(after)
        return path


def node(root: Path, name: str, base: int = 0) -> Journal:
    """The journal of a data directory."""
    return Journal(root / name / "journal", name, base=base)


def fanout(root: Path, name: str, destination: str) -> Journal:
    """The log of a fanout in the data directory of node `name`."""
    return Journal(root / name / FANOUT_DIRECTORY / directory_name(destination), name, FANOUT)


def rows(parts: Iterable[Any], options: Any, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Everything that workers would make of `parts`."""
    from qmq.spark.reading.place import read

    return [row for part in parts for found in read(part, options, columns) for row in found.to_pylist()]
