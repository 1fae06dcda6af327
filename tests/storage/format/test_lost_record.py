"""What the journal says of stretches that are nowhere any more, through crashes and checkpoints."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.errors import CorruptLog
from qmq.model.dots import Origin
from qmq.storage.format.lost_record import LostRange, lost_facts, lost_of, pack_lost, unpack_lost
from qmq.storage.format.record import RecordKind
from tests.fakes.disk import MemoryDisk

from ..rig import NOW, A, B, Writer, open_small

SEQUENCES = st.integers(1, 2**63 - 1)
ORIGINS = st.builds(Origin, st.sampled_from("abc"), st.integers(0, 2**64 - 1))
STRETCHES = st.builds(LostRange, ORIGINS, SEQUENCES, SEQUENCES)


@given(STRETCHES)
def test_a_range_comes_back(stretch: LostRange) -> None:
    assert unpack_lost(pack_lost(stretch)) == stretch
    assert unpack_lost(pack_lost(stretch)[:1].replace(b"\x94", b"\x95") + pack_lost(stretch)[1:] + b"\x01") == stretch


@pytest.mark.parametrize("body", [5, [], ["a", 1, 2], ["a", "x", 1, 2], ["a", 1, None, 2]])
def test_anything_else_is_refused(body: Any) -> None:
    with pytest.raises(CorruptLog):
        unpack_lost(msgpack.packb(body))


def gone(writer: Writer, stretch: LostRange) -> bytes:
    writer.record(RecordKind.GONE, pack_lost(stretch))
    return writer.batch()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_it_is_known_after_a_crash_before_and_after_the_checkpoint(checkpoint: bool) -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    store.journal.append([gone(Writer(A), LostRange(B, 4, 6))])
    store.journal.sync()
    if checkpoint:
        store.checkpoint(store.journal.end, NOW, {}, {})
    store.close()

    again = open_small(disk)

    assert again.recovered.lost.ends == {B: [6]}
    assert again.recovered.given_up == {} and B not in again.recovered.vector


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_another_node_says_is_about_that_node(checkpoint: bool) -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    store.journal.append([gone(Writer(B), LostRange(B, 4, 6))])
    if checkpoint:
        store.checkpoint(store.journal.end, NOW, {}, {})
    store.close()

    assert open_small(disk).recovered.lost.ends == {}


def test_what_is_forgotten_leaves_the_catalog() -> None:
    known = lost_of({"gone/a-0000000000000001": "[2, 5]", "disk/b": "x"})
    assert known.ends == {Origin("a", 1): [2, 5]}
    known.forget({Origin("a", 1)})

    assert lost_facts(known, [Origin("a", 1)]) == {"gone/a-0000000000000001": None}
