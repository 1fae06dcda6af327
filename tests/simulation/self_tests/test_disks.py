"""Damage and backups of memory disks, as the simulation uses them."""

import random

import pytest

from tests.fakes.disk import MemoryDisk
from tests.support.disks import DiskImage, spoil


def disk_with(**files: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    for name, data in files.items():
        disk.put(f"log/{name}", data)
    return disk


@pytest.mark.parametrize("seed", range(40))
def test_one_file_of_the_folder_is_spoilt_and_no_other(seed: int) -> None:
    disk = disk_with(a=bytes(range(200)), b=bytes(range(100, 250)))
    disk.put("other/c", bytes(range(50)))
    before = disk.contents()

    path = spoil(disk, "log", random.Random(seed))

    after = disk.contents()
    assert path.startswith("log/")
    assert {name for name in before if before[name] != after[name]} <= {path}
    assert len(after[path]) <= len(before[path])


def test_damage_is_mostly_real_and_of_several_kinds() -> None:
    sizes: set[bool] = set()
    changed = 0
    for seed in range(40):
        disk = disk_with(a=bytes(range(200)))
        spoil(disk, "log", random.Random(seed))
        changed += disk.contents()["log/a"] != bytes(range(200))
        sizes.add(len(disk.contents()["log/a"]) == 200)

    assert changed > 35
    assert sizes == {True, False}, "bytes change, and ends go missing"


def test_nothing_can_be_spoilt_where_nothing_is() -> None:
    assert spoil(disk_with(a=b""), "log", random.Random(1)) == ""


def test_a_backup_brings_files_and_tables_back_as_they_were() -> None:
    disk = disk_with(a=b"old")
    disk.tables["catalog"] = {"rows": [1]}
    image = DiskImage(disk)
    disk.put("log/a", b"new")
    disk.put("log/b", b"more")
    disk.tables["catalog"] = {"rows": [1, 2]}

    image.restore(disk)

    assert disk.contents() == {"log/a": b"old"}
    assert disk.tables == {"catalog": {"rows": [1]}}
