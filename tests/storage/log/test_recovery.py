import zlib
from errno import ENOSPC

import pytest

from qmq.errors import DiskFull, FutureVersion, LogBroken, StorageError
from qmq.model.dots import Dot, Vector
from qmq.storage.format.batch import MEMORY, read_head
from qmq.storage.format.segment import segment_name
from qmq.storage.format.settings import StoreSettings
from qmq.storage.log.chain import TEMPORARY_SUFFIX
from qmq.storage.log.journal import SYNC_FAILED
from qmq.storage.log.quarantine import HOLES_SUFFIX, load_holes
from qmq.storage.store import Store
from tests.fakes.disk import MemoryDisk

from ..rig import NOW, SMALL, A, B, C, Expected, Writer, journal_batches, open_small, own_messages

FULL = StoreSettings(segment_bytes_max=64_000, reserve_bytes=64_000, journal_keep_bytes=0)
"""Whatever is written comes out of the reserve."""
TAIL = "journal/" + segment_name(0)


def three_batches() -> tuple[MemoryDisk, list[bytes]]:
    disk = MemoryDisk()
    store = open_small(disk)
    a, b = Writer(A), Writer(B)
    batches = [
        a.published("/queue/q", b"one", b"two"),
        b.published("/queue/q", b"three"),
        a.published("/queue/q", b"four"),
    ]
    for data in batches:
        store.journal.append([data])
    store.close()
    return disk, batches


def copy_of(disk: MemoryDisk, **changed: bytes) -> MemoryDisk:
    """The same files on another disk; no tables, as if the catalog had never written."""
    copy = MemoryDisk()
    for path, data in disk.contents().items():
        copy.put(path, data)
    for path, data in changed.items():
        copy.put(path, data)
    return copy


def later(batch: bytes) -> bytes:
    """The same, of the next version."""
    rest = (3).to_bytes(2, "big") + batch[10:]
    return batch[:4] + zlib.crc32(rest).to_bytes(4, "big") + rest


def with_tail(disk: MemoryDisk, data: bytes) -> MemoryDisk:
    copy = copy_of(disk)
    copy.put(TAIL, data)
    return copy


def test_a_log_cut_at_any_byte_keeps_every_whole_batch_before_the_cut() -> None:
    disk, batches = three_batches()
    whole = disk.contents()[TAIL]
    head = len(whole) - sum(map(len, batches))

    for cut in range(len(whole) + 1):
        ends = [head + sum(map(len, batches[: n + 1])) for n in range(3)]
        kept = [data for data, end in zip(batches, ends, strict=True) if end <= cut]
        damaged = with_tail(disk, whole[:cut])

        store = open_small(damaged)

        assert journal_batches(store) == kept, cut
        assert store.recovered.vector == Expected(kept).vector
        assert store.recovered.quarantined == []
        store.journal.append([Writer(C).published("/queue/q", b"goes on")])
        store.close()
        assert open_small(damaged).recovered.torn_bytes == 0


def test_any_flipped_bit_is_noticed_and_never_served() -> None:
    disk, batches = three_batches()
    whole = disk.contents()[TAIL]

    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        damaged = with_tail(disk, bytes(flipped))

        store = open_small(damaged)
        served = journal_batches(store)

        assert all(data in batches for data in served), place
        assert store.recovered.vector == Expected(served).vector, place
        assert store.recovered.quarantined or store.recovered.torn_bytes, place
        store.close()
        again = open_small(damaged)
        assert journal_batches(again) == served, place
        assert again.recovered.vector == store.recovered.vector
        assert again.recovered.quarantined == []


def test_a_hole_stops_its_origin_before_it_and_spares_the_others() -> None:
    disk, batches = three_batches()
    whole = bytearray(disk.contents()[TAIL])
    place = whole.index(b"one")
    whole[place] ^= 1
    damaged = with_tail(disk, bytes(whole))

    store = open_small(damaged)

    assert store.recovered.vector == {B: 1}
    assert [(entry.origin, entry.first, entry.last) for entry in store.recovered.quarantined] == [
        (None, 0, 0),
        (A, 3, 3),
    ]
    assert [body for _, body in own_messages(store)] == []
    kept_aside = [data for path, data in damaged.contents().items() if path.endswith(".bad")]
    assert kept_aside == [bytes(whole[place - (bytes(batches[0]).index(b"one")) :][: len(batches[0])]) + batches[2]]


def test_what_was_quarantined_can_be_fetched_again_and_counts_then() -> None:
    disk, batches = three_batches()
    whole = bytearray(disk.contents()[TAIL])
    whole[whole.index(b"one")] ^= 1
    damaged = with_tail(disk, bytes(whole))
    store = open_small(damaged)

    store.journal.append([batches[0], batches[2]])
    store.close()
    again = open_small(damaged)

    assert again.recovered.vector == {A: 3, B: 1}
    assert again.recovered.quarantined == []
    assert len(again.recovered.quarantined_before) == 2
    assert [body for _, body in own_messages(again)] == [b"one", b"two", b"four"]


def test_recovery_that_is_cut_at_any_call_recovers_to_the_same_state() -> None:
    disk, batches = three_batches()
    whole = bytearray(disk.contents()[TAIL])
    whole[whole.index(b"one")] ^= 1
    torn = bytes(whole) + batches[1][:50]
    wanted: Vector = {B: 1}

    for call in range(40):
        damaged = with_tail(disk, torn)
        damaged.fail_at(call)
        try:
            open_small(damaged).close()
        except LogBroken:
            damaged.stop()
        damaged.heal()
        damaged.unlock()

        store = open_small(damaged)

        assert store.recovered.vector == wanted, call
        assert len(load_holes(damaged)) == 2
        assert journal_batches(store) == [batches[1]]


def test_damage_in_a_full_segment_is_no_torn_tail() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    batches = [a.published("/queue/q", b"x" * 400) for _ in range(6)]
    for data in batches:
        store.journal.append([data])
    assert store.journal.segments() > 1
    store.close()
    path = sorted(disk.contents())[0]
    damaged = copy_of(disk)
    damaged.put(path, disk.contents()[path][:-1])

    again = open_small(damaged)

    assert again.recovered.torn_bytes == 0
    assert again.recovered.quarantined
    assert again.recovered.vector == {A: 1}


def test_a_segment_that_was_only_begun_is_removed() -> None:
    disk, batches = three_batches()
    end = open_small(copy_of(disk)).journal.end
    for cut in (0, 10, 63):
        damaged = copy_of(disk)
        damaged.put("journal/" + segment_name(end), disk.contents()[TAIL][:cut])

        store = open_small(damaged)

        assert journal_batches(store) == batches
        assert store.journal.segments() == 1


def test_a_later_version_is_refused_and_nothing_is_changed() -> None:
    disk, batches = three_batches()
    newer = copy_of(disk)
    newer.put(TAIL, disk.contents()[TAIL] + later(batches[2]))
    before = newer.contents()

    with pytest.raises(FutureVersion, match="version 3"):
        open_small(newer)

    assert newer.contents() == before


def test_a_later_version_of_a_segment_is_refused() -> None:
    disk, _ = three_batches()
    head = bytearray(disk.contents()[TAIL])
    head[8:10] = (2).to_bytes(2, "big")
    size = int.from_bytes(head[12:16], "big")
    head[4:8] = zlib.crc32(head[8:size]).to_bytes(4, "big")

    with pytest.raises(FutureVersion, match="version 2"):
        open_small(with_tail(disk, bytes(head)))


def test_a_log_that_lost_what_the_checkpoint_knew_goes_on_behind_it() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    store.journal.append([Writer(B).published("/queue/q", b"one")])
    store.checkpoint(store.journal.end, NOW, {"b": {}})
    position = store.journal.end
    disk.stop()
    disk.put(TAIL, disk.contents()[TAIL][:70])

    again = open_small(disk)

    assert again.recovered.lost_positions > 0
    assert again.recovered.vector == {B: 1}
    assert again.journal.end >= position


def test_a_lost_catalog_costs_no_record_that_is_still_in_the_journal() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    b = Writer(B)
    for n in range(12):
        store.journal.append([b.published("/queue/q", b"x" * 300 + str(n).encode())])
    store.checkpoint(store.journal.end, NOW, {})
    assert store.journal.start > 0
    kept = journal_batches(store)
    store.close()

    again = open_small(copy_of(disk))

    assert again.recovered.vector == {B: 12}
    assert journal_batches(again) == kept


def test_the_data_directory_of_another_node_is_refused() -> None:
    from tests.fakes.store import open_memory_store

    disk = MemoryDisk()
    open_small(disk).close()

    with pytest.raises(StorageError, match="belongs to node a"):
        open_memory_store(disk, node="b")
    open_small(disk)


def test_a_batch_that_no_journal_may_hold_is_not_taken_for_one() -> None:
    disk, _ = three_batches()
    memory_only = Writer(C)
    memory_only.publish("/topic/t", b"x")
    copy = copy_of(disk)
    copy.put(TAIL, disk.contents()[TAIL] + memory_only.batch(MEMORY))

    store = open_small(copy)

    assert C not in store.recovered.vector
    assert [entry.origin for entry in store.recovered.quarantined] == [C]


def test_unsynced_appends_may_go_with_the_power_but_never_tear_the_rest() -> None:
    from random import Random

    settings = StoreSettings(sync="never", segment_bytes_max=1500, reserve_bytes=0)
    for seed in range(40):
        disk = MemoryDisk()
        store = open_small(disk, settings)
        a = Writer(A)
        for n in range(6):
            store.journal.append([a.published("/queue/q", b"%d" % n)])
            if n == 2:
                store.journal.sync()
        disk.crash(Random(seed))

        again = open_small(disk, SMALL)

        kept = again.recovered.vector[A]
        assert 3 <= kept <= 6
        assert [dot for dot, _ in own_messages(again)] == [Dot(A, n + 1) for n in range(kept)]


def test_a_batch_inside_a_damaged_message_is_not_taken_for_the_nodes_own() -> None:
    disk, batches = three_batches()
    smuggled = Writer(C).published("/queue/q", b"forged")
    carrier = Writer(B, have=1)
    carrier.publish("/queue/q", smuggled + b"more")
    data = bytearray(carrier.batch())
    data[-1] ^= 1
    head = read_head(bytes(data))
    assert head is not None
    after = Writer(A, have=3).published("/queue/q", b"after")
    copy = with_tail(disk, disk.contents()[TAIL] + bytes(data) + after)

    store = open_small(copy)

    assert C not in store.recovered.vector
    assert journal_batches(store) == [*batches, after]


def test_a_batch_inside_a_torn_message_is_not_taken_for_the_nodes_own() -> None:
    disk, batches = three_batches()
    carrier = Writer(B, have=1)
    carrier.publish("/queue/q", Writer(C).published("/queue/q", b"forged") + b"more")
    data = carrier.batch()

    for cut in range(1, 10):
        store = open_small(with_tail(disk, disk.contents()[TAIL] + data[:-cut]))

        assert C not in store.recovered.vector
        assert journal_batches(store) == batches
        assert store.recovered.torn_bytes == len(data) - cut
        assert store.recovered.quarantined == []


def test_a_batch_of_a_later_version_inside_a_torn_message_is_only_a_body() -> None:
    """A power cut took the page with the head, so nothing says where the message would have ended."""
    disk, batches = three_batches()
    data = Writer(B, have=1).published("/queue/q", bytes(200) + later(Writer(C).published("/queue/q", b"sent")))

    store = open_small(with_tail(disk, disk.contents()[TAIL] + bytes(120) + data[120:]))

    assert journal_batches(store) == batches
    assert store.recovered.torn_bytes == len(data)


def test_a_later_version_behind_damage_is_refused() -> None:
    disk, _ = three_batches()
    data = bytearray(Writer(B, have=1).published("/queue/q", b"damaged"))
    data[-1] ^= 1
    copy = with_tail(
        disk, disk.contents()[TAIL] + bytes(data) + later(Writer(A, have=3).published("/queue/q", b"more"))
    )

    with pytest.raises(FutureVersion):
        open_small(copy)


def with_ten_records(disk: MemoryDisk) -> tuple[Store, Writer]:
    """A store of some 50 kB that has made a checkpoint."""
    store = open_small(disk, FULL)
    a = Writer(A)
    for _ in range(10):
        store.journal.append([a.published("/queue/q", b"x" * 5000)])
    store.checkpoint(store.journal.end, NOW, {})
    return store, a


def test_a_torn_tail_keeps_no_node_from_starting_where_there_is_no_room_for_a_copy() -> None:
    disk = MemoryDisk()
    store, a = with_ten_records(disk)
    disk.stop()
    path = next(path for path in disk.contents() if path.startswith("journal/"))
    whole = disk.contents()[path]
    disk._files[path].data += a.published("/queue/q", b"x" * 5000)[:3000]
    disk.capacity_bytes = disk.used_bytes() + 20_000

    store = open_small(disk, FULL)

    assert store.recovered.torn_bytes == 3000
    assert disk.contents()[path] == whole
    assert not [path for path in disk.contents() if path.endswith(TEMPORARY_SUFFIX)]
    store.begin_incarnation(7, NOW)


def test_an_append_that_found_no_room_keeps_no_node_from_starting() -> None:
    disk = MemoryDisk()
    store, a = with_ten_records(disk)
    disk.capacity_bytes = disk.used_bytes() + 4000
    disk.fail_at(1)  # What was written in part cannot be cut off.
    with pytest.raises(LogBroken):
        store.journal.append([a.published("/queue/q", b"x" * 5000)], settle_only=True)
    disk.stop()
    disk.capacity_bytes += 20_000

    store = open_small(disk, FULL)

    assert store.recovered.vector == {A: 10}
    store.begin_incarnation(7, NOW)


def test_a_segment_that_found_no_room_keeps_no_node_from_starting() -> None:
    disk = MemoryDisk()
    store = open_small(disk, FULL)
    store.journal.append([Writer(A).published("/queue/q", b"x" * 63_000)])
    disk.capacity_bytes = disk.used_bytes() + 10
    with pytest.raises(DiskFull):
        store.journal.append([Writer(B).published("/queue/q", b"x" * 5000)], settle_only=True)
    disk.stop()

    store = open_small(disk, FULL)

    assert store.recovered.vector == {A: 1}
    assert store.journal.segments() == 1


def test_nothing_is_written_to_a_torn_file_that_a_copy_may_have_replaced() -> None:
    disk, batches = three_batches()
    disk = with_tail(disk, disk.contents()[TAIL] + batches[2][:-1])
    sync_directory = disk.sync_directory

    def no_room(path: str) -> None:
        disk.sync_directory = sync_directory  # type: ignore[method-assign]
        raise OSError(ENOSPC, "no room for the name")

    disk.sync_directory = no_room  # type: ignore[method-assign]
    with pytest.raises(LogBroken):
        open_small(disk)
    disk.stop()

    assert journal_batches(open_small(disk)) == batches


def test_after_a_failed_sync_no_node_starts_without_room_for_a_copy() -> None:
    disk = MemoryDisk()
    store = open_small(disk, FULL)
    store.journal.append([Writer(A).published("/queue/q", b"x" * 5000)])
    disk.fail_next("sync")
    with pytest.raises(LogBroken):
        store.journal.append([Writer(B).published("/queue/q", b"two")])
    disk.stop()
    disk.capacity_bytes = disk.used_bytes() + 3000

    with pytest.raises(LogBroken):
        open_small(disk, FULL)

    assert not [path for path in disk.contents() if path.endswith(TEMPORARY_SUFFIX)]
    disk.stop()
    disk.capacity_bytes += 20_000
    assert open_small(disk, FULL).recovered.vector == {A: 1, B: 1}


def test_after_a_failed_sync_the_tail_is_copied_and_not_only_synced_again() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    a = Writer(A)
    store.journal.append([a.published("/queue/q", b"one")])
    # The sync of the next append fails; the disk works again afterwards and takes a note.
    disk.fail_next("sync")
    with pytest.raises(LogBroken):
        store.journal.append([a.published("/queue/q", b"two")])
    disk.stop()
    before = disk.calls["rename"] if "rename" in disk.calls else 0

    recovered = open_small(disk)

    assert recovered.recovered.vector == {A: 2}
    assert disk.calls["rename"] == before + 1
    assert SYNC_FAILED not in disk.contents()
    recovered.close()
    renames = disk.calls["rename"]
    open_small(disk)
    assert disk.calls["rename"] == renames


def test_a_list_of_holes_is_written_only_once_what_it_speaks_of_can_change_no_more() -> None:
    disk = MemoryDisk()
    store = open_small(disk, StoreSettings(segment_bytes_max=1500, reserve_bytes=0, sync="never"))
    a, b = Writer(A), Writer(B)
    store.journal.append([a.published("/queue/q", b"one"), b.published("/queue/q", b"two")])
    node = disk._files[TAIL]
    node.data[node.data.index(b"one")] ^= 1
    disk.stop()
    synced: list[int] = []
    create = disk.create

    def watched(path: str) -> object:
        if path.startswith("quarantine/"):
            synced.append(disk._files[TAIL].synced)
        return create(path)

    disk.create = watched  # type: ignore[assignment, method-assign]
    open_small(disk)

    assert synced and set(synced) == {len(node.data)}


@pytest.mark.parametrize("damage", [b"", b"\0" * 9, b"\xc1" * 9, b"\x91\x95\x01\x00\xc0\x00\x00", b"\x91\x01"])
def test_a_list_of_holes_that_has_rotted_prevents_no_start(damage: bytes) -> None:
    disk, batches = three_batches()
    disk = with_tail(disk, disk.contents()[TAIL].replace(b"one", b"One"))
    store = open_small(disk)
    rows, vector = own_messages(store), store.recovered.vector
    assert load_holes(disk)
    store.close()
    path = next(path for path in disk.contents() if path.endswith(HOLES_SUFFIX))

    disk.put(path, damage)
    store = open_small(disk)

    assert (own_messages(store), store.recovered.vector) == (rows, vector)
    assert batches[1] in journal_batches(store)
    assert store.recovered.quarantined_before
    assert any("the journal is damaged" in what for what in store.damage())
