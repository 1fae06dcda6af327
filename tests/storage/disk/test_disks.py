"""What storage asks of a disk, on real files and on the twin; then what the twin adds: failing and crashing."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from qmq.errors import DirectoryInUse
from qmq.storage.disk.disk import (
    SHORTAGE_PAUSES,
    SPARE_DESCRIPTORS,
    SPARE_FOR_MOMENTS,
    ReadOnlyDisk,
    RealDisk,
)
from qmq.storage.format.interfaces import Disk
from tests.fakes.disk import MemoryDisk

from ..rig import no_descriptor_left


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made: Disk = RealDisk(tmp_path / "data") if request.param == "real" else MemoryDisk()
    made.lock()
    made.make_directory("d/e")
    yield made
    made.unlock()


def test_a_file_gives_back_what_was_appended(disk: Disk) -> None:
    file = disk.create("d/e/f")
    file.write(b"hello ")
    file.write(b"world")
    file.sync()

    assert file.size() == 11
    assert file.read(0, 5) == b"hello"
    assert file.read(6, 100) == b"world"
    assert file.read(11, 5) == b""
    file.close()
    again = disk.open("d/e/f")
    again.write(b"!")
    assert again.read(0, 100) == b"hello world!"
    again.close()


def test_what_a_node_stores_is_for_its_user_alone(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "var" / "data")
    disk.lock()
    disk.make_directory("fanouts/one")
    disk.create("fanouts/one/log").close()
    disk.unlock()

    made = [tmp_path / "var" / path for path in ("", "data", "data/fanouts", "data/fanouts/one")]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 4
    assert (made[-1] / "log").stat().st_mode & 0o777 == 0o600


def test_creating_replaces_and_renaming_puts_one_in_the_place_of_another(disk: Disk) -> None:
    for name, data in (("one", b"1"), ("two", b"2"), ("two", b"3")):
        file = disk.create("d/" + name)
        file.write(data)
        file.close()

    disk.rename("d/one", "d/two")
    disk.sync_directory("d")

    assert disk.names("d") == ["e", "two"] or disk.names("d") == ["two"]
    file = disk.open("d/two")
    assert file.read(0, 10) == b"1"
    file.close()


def test_a_file_is_cut_and_goes_on_from_there(disk: Disk) -> None:
    file = disk.create("d/f")
    file.write(b"one two")
    file.sync()

    file.cut(3)
    file.write(b" more")

    assert (file.size(), file.read(0, 100)) == (8, b"one more")
    file.close()


def test_what_is_not_there_cannot_be_opened_or_removed(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("d/none")
    with pytest.raises(FileNotFoundError):
        disk.remove("d/none")
    assert disk.names("nowhere") == []


def test_an_open_file_can_still_be_read_after_it_was_removed(disk: Disk) -> None:
    file = disk.create("d/f")
    file.write(b"kept")

    disk.remove("d/f")

    assert file.read(0, 10) == b"kept"
    assert "f" not in disk.names("d")
    file.close()


def test_free_space_is_a_number_of_bytes(disk: Disk) -> None:
    assert disk.free_bytes() > 0


def test_a_directory_belongs_to_one_process(tmp_path: Path) -> None:
    first, second = RealDisk(tmp_path), RealDisk(tmp_path)
    first.lock()

    with pytest.raises(DirectoryInUse, match=str(tmp_path)):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_the_names_of_all_directories_that_are_made_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    disk = RealDisk(tmp_path / "srv" / "data")
    disk.lock()
    assert synced == {str(tmp_path), str(tmp_path / "srv")}

    disk.make_directory("d/e")
    assert synced == {str(tmp_path / name) for name in (".", "srv", "srv/data", "srv/data/d")}
    synced.clear()
    disk.make_directory("d/e")
    assert not synced
    disk.unlock()


def test_a_memory_disk_belongs_to_one_node() -> None:
    disk = MemoryDisk()
    disk.lock()

    with pytest.raises(DirectoryInUse):
        disk.lock()
    disk.crash(Random(0))
    disk.lock()


def test_a_reader_beside_a_node_cannot_write(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    disk.create("f").close()

    file = ReadOnlyDisk(tmp_path).open("f")

    with pytest.raises(OSError):
        file.write(b"x")
    file.close()


def test_a_power_cut_keeps_what_was_synced_and_any_part_of_the_rest() -> None:
    lengths = set()
    for seed in range(60):
        disk = MemoryDisk()
        file = disk.create("d/f")
        file.write(b"synced")
        file.sync()
        disk.sync_directory("d")
        file.write(b"unsynced")

        disk.crash(Random(seed))

        kept = disk.contents()["d/f"]
        assert kept.startswith(b"synced")
        assert all(byte in (0, wanted) for byte, wanted in zip(kept, b"syncedunsynced", strict=False))
        lengths.add(len(kept))
    assert lengths == set(range(6, 15))


def test_a_power_cut_keeps_names_only_up_to_some_point_unless_synced() -> None:
    outcomes = set()
    for seed in range(60):
        disk = MemoryDisk()
        disk.create("d/kept").sync()
        disk.sync_directory("d")
        disk.create("d/new").sync()
        disk.rename("d/new", "d/kept")
        disk.remove("d/kept")

        disk.crash(Random(seed))

        outcomes.add(tuple(sorted(disk.contents())))
    assert outcomes == {("d/kept",), ("d/kept", "d/new"), ()}


def test_handles_die_with_the_power() -> None:
    disk = MemoryDisk()
    file = disk.create("f")

    disk.crash(Random(0))

    for call in (lambda: file.write(b"x"), file.sync, lambda: file.read(0, 1)):
        with pytest.raises(OSError, match="before the crash"):
            call()


def test_killing_the_process_leaves_everything_written_but_not_synced() -> None:
    disk = MemoryDisk()
    disk.create("d/f").write(b"x" * 100)
    disk.sync_directory("d")

    disk.stop()
    assert disk.contents() == {"d/f": b"x" * 100}

    sizes = set()
    for seed in range(20):
        copy = MemoryDisk()
        copy.create("d/f").write(b"x" * 100)
        copy.sync_directory("d")
        copy.stop()
        copy.crash(Random(seed))
        sizes.add(len(copy.contents()["d/f"]))
    assert len(sizes) > 5


def test_a_wiped_disk_is_empty_and_says_so() -> None:
    disk = MemoryDisk()
    disk.create("f").write(b"x")
    disk.tables["catalog"] = 1

    disk.wipe()

    assert (disk.contents(), disk.tables, disk.wipes) == ({}, {}, 1)


def test_a_disk_that_was_made_to_fail_fails_from_that_call_on() -> None:
    disk = MemoryDisk()
    file = disk.create("f")
    disk.fail_at(1)

    file.write(b"whole")
    for call in (lambda: file.write(b"half"), file.sync, lambda: disk.create("g"), lambda: disk.remove("f")):
        with pytest.raises(OSError, match="made to fail"):
            call()
    disk.heal()
    file.sync()

    assert disk.contents()["f"] == b"wholeha"


def test_files_are_opened_from_a_reserve_when_descriptors_run_out_and_it_is_filled_up_afterwards(
    tmp_path: Path,
) -> None:
    disk = RealDisk(tmp_path / "data")
    disk.lock()
    disk.make_directory("d")
    with no_descriptor_left():
        files = [disk.create(f"d/{number}") for number in range(SPARE_DESCRIPTORS - SPARE_FOR_MOMENTS)]
        with patch.object(time, "sleep") as pause, pytest.raises(OSError, match="Too many open files"):
            disk.create("d/too many")
        assert pause.call_count == SHORTAGE_PAUSES
        disk.sync_directory("d")
        assert len(disk.names("d")) == SPARE_DESCRIPTORS - SPARE_FOR_MOMENTS
        with patch.object(time, "sleep", lambda _: files.pop(0).close()):
            files.append(disk.create("d/when one is free"))

    disk.create("d/again").close()
    assert len(disk._spare) == SPARE_DESCRIPTORS
    for file in files:
        file.write(b"whole")
        file.close()
    disk.unlock()
    assert disk._spare == []
