"""Bytes written by format version 2, a batch with a shared body, stay readable."""

from qmq.storage.format.batch import SHARED_VERSION, batch_records, encode_batch, verify_batch
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record, pack_reference

from .rig import A

BODY = b"0123456789abcdef" * 4

# One batch of origin a:00000000000000a1, sequences 7–8: a message to a fanout, and its copy to a queue.
BATCH = bytes.fromhex(
    "514d51b16ef4b7cb000200000000010c0000000200000000610000000000000000000000000000000000000000000000"
    "000000000000000000000000000000a10000000000000007000000000000000800060a24181e400700060a24181e4007"
    "000000710000003396cf0000000000000007cf00060a24181e4007cf0100000500000000ac2f66616e6f75742f6e6577"
    "73c4046b3a760ac440303132333435363738396162636465663031323334353637383961626364656630313233343536"
    "3738396162636465663031323334353637383961626364656696cf0000000000000008cf00060a24181e4007cf010000"
    "0500000000ab2f71756575652f6a6f6273c4046b3a760ace00000001"
)


def packed() -> bytes:
    fanout, queue = pack_envelope("/fanout/news", b"k:v\n"), pack_envelope("/queue/jobs", b"k:v\n")
    message = pack_record(7, 1_700_000_000_000_007, RecordKind.PUBLISH, 5, fanout, BODY)
    copy = pack_reference(8, 1_700_000_000_000_007, 5, queue, 1)
    return encode_batch(A, [message, copy], 7, 8, 1_700_000_000_000_007, 1_700_000_000_000_007, 0, SHARED_VERSION)


def test_a_batch_of_version_2_is_written_and_read_byte_for_byte() -> None:
    assert packed() == BATCH
    assert verify_batch(BATCH).version == SHARED_VERSION
    assert [(record.destination, record.body) for record in batch_records(BATCH)] == [
        ("/fanout/news", BODY),
        ("/queue/jobs", BODY),
    ]
