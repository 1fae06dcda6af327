"""The deep audit: every byte of the chosen segments is read and verified, in Spark's workers."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qmq.errors import CorruptLog
from qmq.spark.jobs.audit_findings import CORRUPT, Audit, Finding, damaged
from qmq.spark.reading.columns import EVERYTHING, Columns, Piece
from qmq.spark.reading.logs import DataDirectory
from qmq.spark.reading.options import Options
from qmq.spark.reading.plan import is_left_out, may_be_asked
from qmq.spark.reading.segments import Extent, NotBegun, spans_in
from qmq.storage.format.batch import REST, BatchHead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def audit_deep(
    spark: "SparkSession",
    directories: Sequence[DataDirectory],
    found: Audit,
    *,
    choice: Options | None = None,
) -> None:
    """Add to `found` what only reading everything shows, or everything of a `choice` (see `audit`)."""
    extents = [extent for directory in directories for extent in extents_of(directory, choice)]
    if not extents:
        return
    from qmq.spark.jobs.tasks import results_of

    findings = results_of(spark, extents, verify_extent)
    known = {finding.where for finding in found.findings}
    found.findings += [finding for finding in findings if finding.where not in known]
    found.bytes_verified += sum(extent.end - extent.start for extent in extents)


def extents_of(directory: DataDirectory, choice: Options | None = None) -> Iterator[Extent]:
    """All batches of a node, journal and fanout logs, a segment at a time; of one without a head, all bytes.

    With a `choice` only the segments that it does not leave out, and of fanout logs those of its destinations.
    """
    fanouts = directory.fanout_logs()
    if choice is not None and choice.chooses:
        fanouts = (log for log in fanouts if may_be_asked(directory.name_of(log), log, choice))
    for log in [directory.journal, *fanouts]:
        for segment in log.files():
            try:
                if is_left_out(segment, choice):
                    continue
                yield segment.extent(segment.head().size, segment.list().reach)
            except (FileNotFoundError, NotBegun):
                continue  # Retention of the running node was quicker, or it has just begun the file.
            except CorruptLog:
                yield segment.extent(0, segment.batches_end or segment.path.stat().st_size)


def verify_extent(extent: Extent) -> list[Finding]:
    """Every batch of `extent`: checksum, record lengths, and the sequences in its records.

    Raises FileNotFoundError where the directory is not there, as on a machine that does not share it.
    """
    try:
        with open(extent.path, "rb") as file:
            data = file.read(extent.end)
    except FileNotFoundError:
        if not Path(extent.path).parent.is_dir():
            raise  # This worker does not see the files.
        return []  # Retention of the running node was quicker.
    findings: list[Finding] = []
    for at, piece, found in spans_in(data, extent):
        offset = at + found.start
        if found.head is None:
            findings.append(damaged(extent.node, extent.path, offset, at + found.end))
        elif not is_true(found.head, piece[found.start : found.end]):
            where = f"{extent.path} {offset}: its records are not those that it announces"
            head = found.head
            findings.append(Finding(extent.node, CORRUPT, str(head.origin), head.first, head.last, where))
    return findings


def is_true(head: BatchHead, batch: bytes) -> bool:
    """Whether the sequences in the records are those that the head announces."""
    sequences = Columns(batch, [Piece(0, 0, EVERYTHING)], check=False).sequence
    grows = bool((sequences[1:] > sequences[:-1]).all())
    first, last = int(sequences[0]), int(sequences[-1])
    if head.attributes & REST:
        # It stands for a whole range, of which some records, and always the last one, were left.
        return grows and first >= head.first and last == head.last
    return grows and (first, last) == (head.first, head.last)
