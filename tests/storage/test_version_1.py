"""Bytes written by format version 1 stay readable. The files under `version_1/` are never written again.

A new format version gets a directory and a test of its own; this one stays as it is.
"""

from pathlib import Path

from qmq.model.dots import Dot
from qmq.storage.format.batch import encode_batch, verify_batch
from qmq.storage.format.record import RecordKind, pack_dots, pack_envelope, pack_record
from qmq.storage.format.segment import read_footer, segment_base
from qmq.storage.format.settings import StoreSettings
from qmq.storage.verify import dump, verify
from tests.fakes.disk import MemoryDisk
from tests.fakes.store import open_memory_store

from .rig import A, B, journal_batches, own_messages

FILES = Path(__file__).parent / "version_1"
SETTINGS = StoreSettings(reserve_bytes=0)

# One batch of origin a:00000000000000a1, sequences 7–8: a message and the settle of another origin's message.
BATCH = bytes.fromhex(
    "514d51b189ade3ac00010000000000d20000000200000000610000000000000000000000000000000000000000000000"
    "000000000000000000000000000000a10000000000000007000000000000000800060a24181e400700060a24181e4008"
    "000000350000003596cf0000000000000007cf00060a24181e4007cf0100000500000000ab2f71756575652f6a6f6273"
    "c4046b3a760ac40568656c6c6f96cf0000000000000008cf00060a24181e4008cf0200000000000000ab2f7175657565"
    "2f6a6f6273c400c4099193a162ccb1920304"
)


def packed() -> bytes:
    message = pack_record(
        7, 1_700_000_000_000_007, RecordKind.PUBLISH, 5, pack_envelope("/queue/jobs", b"k:v\n"), b"hello"
    )
    settle = pack_record(
        8,
        1_700_000_000_000_008,
        RecordKind.SETTLE,
        0,
        pack_envelope("/queue/jobs", b""),
        pack_dots([Dot(B, 3), Dot(B, 4)]),
    )
    return encode_batch(A, [message, settle], 7, 8, 1_700_000_000_000_007, 1_700_000_000_000_008)


def test_a_batch_of_version_1_is_written_and_read_byte_for_byte() -> None:
    assert packed() == BATCH
    assert verify_batch(BATCH).last == 8


def test_a_directory_of_version_1_is_sound_and_says_what_it_holds() -> None:
    assert not verify(FILES).damaged
    records = list(dump(FILES, whole=True))

    assert [(record.origin, record.sequence, record.kind, record.body) for record in records][:3] == [
        (A, 1, "PUBLISH", b"0" * 300),
        (B, 1, "PUBLISH", b"f0"),
        (B, 2, "PUBLISH", b"g0"),
    ]
    assert [record.kind for record in records[-2:]] == ["SETTLE", "77"]
    assert records[0].headers == b"k:v\n"


def test_a_node_opens_a_journal_of_version_1() -> None:
    disk = MemoryDisk()
    for path in (FILES / "journal").iterdir():
        disk.put(f"journal/{path.name}", path.read_bytes())
    first, second = sorted(disk.contents())[:2]
    footer = read_footer(disk.open(first), segment_base(Path(second).name) or 0)

    store = open_memory_store(disk, node="a", settings=SETTINGS)

    assert footer is not None and footer.destinations["/queue/q"] == (2, 600)
    assert store.recovered.vector == {A: 7, B: 10}
    assert (store.recovered.torn_bytes, store.recovered.quarantined) == (0, [])
    assert [dot for dot, _ in own_messages(store)] == [Dot(A, n) for n in (2, 3, 4, 5)]
    assert len(journal_batches(store)) == 11
