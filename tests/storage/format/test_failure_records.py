"""What the journal says of messages that fail, through crashes and checkpoints."""

from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.errors import CorruptLog, LogBroken
from qmq.model.dots import Dot, Origin
from qmq.storage.format.failure_records import ATTEMPTS_MAX, pack_attempts, pack_dead, unpack_attempts, unpack_dead
from tests.fakes.disk import MemoryDisk

from ..rig import NOW, A, B, Writer, all_attempts, all_rows, open_small

Q = "/queue/q"
DOTS = st.builds(Dot, st.builds(Origin, st.sampled_from("abc"), st.integers(0, 2**64 - 1)), st.integers(1, 2**63 - 1))


@given(st.dictionaries(DOTS, st.integers(1, ATTEMPTS_MAX)))
def test_counts_come_back(counts: dict[Dot, int]) -> None:
    assert unpack_attempts(pack_attempts(counts.items())) == counts


def test_a_count_stops_at_what_every_store_can_hold() -> None:
    assert unpack_attempts(pack_attempts([(Dot(A, 1), 2**40)])) == {Dot(A, 1): ATTEMPTS_MAX}


@given(DOTS, st.binary(max_size=300))
def test_a_dead_letter_comes_back(dot: Dot, body: bytes) -> None:
    assert unpack_dead(pack_dead("/queue/ä", dot, body)) == ("/queue/ä", dot, body)


@pytest.mark.parametrize(
    "body",
    [
        5,
        [5],
        [["a", 1]],
        [["a", 1, [1]]],
        [["a", 1, [1, -1]]],
        [["a", 1, [1, 2**31]]],
        [[5, 1, [1, 1]]],
        [["a", -1, []]],
    ],
)
def test_what_are_no_counts_is_corrupt(body: Any) -> None:
    with pytest.raises(CorruptLog, match="not a list of attempts"):
        unpack_attempts(msgpack.packb(body))


@pytest.mark.parametrize(
    "body", [5, [], [5, "a", 1, 1, b""], [Q, "a", 1, 1, "text"], [Q, "a", -1, 1, b""], [Q, "a", 1, 2**63, b""]]
)
def test_what_is_no_dead_letter_is_corrupt(body: Any) -> None:
    with pytest.raises(CorruptLog, match="not a dead letter"):
        unpack_dead(msgpack.packb(body))
    with pytest.raises(CorruptLog):
        unpack_dead(b"\xc1")


def test_counts_reach_the_store_whether_their_message_is_there_or_comes_with_them() -> None:
    store = open_small(MemoryDisk())
    writer = Writer(A)
    before = writer.publish(Q, b"before")
    store.journal.append([writer.batch()])
    store.checkpoint(store.journal.end, NOW, {})

    with_them, gone = writer.publish(Q, b"with"), writer.publish(Q, b"gone")
    writer.attempts(Q, {before: 1, with_them: 1, gone: 1, Dot(A, 99): 7})
    writer.attempts(Q, {before: 2})
    writer.settle(Q, [gone])
    store.journal.append([writer.batch()])
    store.checkpoint(store.journal.end, NOW, {})

    assert all_attempts(store) == {before: 2, with_them: 1}


def test_another_node_counts_on_where_the_owner_has_ended() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    owner, taker = Writer(B), Writer(A)
    dot = owner.publish(Q, b"x")
    owner.attempts(Q, {dot: 2})
    store.journal.append([owner.batch()])
    store.checkpoint(store.journal.end, NOW, {})
    taker.attempts(Q, {dot: 3})
    store.journal.append([taker.batch()])
    disk.stop()

    assert all_attempts(open_small(disk)) == {dot: 3}


def test_a_crash_at_any_write_leaves_a_message_in_its_queue_or_among_the_dead_letters() -> None:
    """Appends and checkpoints are cut at every call of the disk, with what was not synced lost or not."""
    seen: set[str] = set()
    for calls in range(60):
        for keeps_all in (False, True):
            disk = MemoryDisk()
            store = open_small(disk)
            writer = Writer(A)
            dot = writer.publish(Q, b"poison")
            store.journal.append([writer.batch()])
            disk.fail_at(calls)
            buried = False
            try:
                store.checkpoint(store.journal.end, NOW, {})
                writer.attempts(Q, {dot: 1})
                store.journal.append([writer.batch()])
                writer.dead(Q, dot, b"poison")
                store.journal.append([writer.batch()])
                buried = True
                store.checkpoint(store.journal.end, NOW, {})
            except LogBroken:
                pass
            disk.heal()
            if keeps_all:
                disk.stop()
            else:
                disk.crash(Random(calls))

            store = open_small(disk)
            store.checkpoint(store.journal.end, NOW, {})
            rows = all_rows(store)
            where = "letter" if dot not in rows else "queue"
            assert list(rows.values()) == [b"poison"], f"cut at call {calls}: {rows}"
            assert where == "letter" or not buried
            seen.add(where)
    assert seen == {"letter", "queue"}
