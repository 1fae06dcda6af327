"""Syncing many files and directories together."""

import errno
import os
from pathlib import Path

import pytest

from qmq.storage.disk import disk as real_disk
from qmq.storage.disk.disk import RealDisk

COUNT = 20


def test_each_file_and_each_directory_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(tmp_path)
    files = [disk.create(f"{number}") for number in range(COUNT)]
    directories = [f"d{number}" for number in range(COUNT)]
    for directory in directories:
        disk.make_directory(directory)
    synced: list[object] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    monkeypatch.setattr(real_disk, "sync_directory", synced.append)

    disk.sync_all(files, directories)

    assert len(synced) == 2 * COUNT
    assert {path for path in synced if isinstance(path, Path)} == {tmp_path / name for name in directories}
    assert len({number for number in synced if isinstance(number, int)}) == COUNT


def test_one_that_fails_fails_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(tmp_path)
    files = [disk.create(f"{number}") for number in range(COUNT)]
    bad = files[7]._descriptor

    def fdatasync(descriptor: int) -> None:
        if descriptor == bad:
            raise OSError(errno.EIO, "refused")

    monkeypatch.setattr(os, "fdatasync", fdatasync)

    with pytest.raises(OSError, match="refused"):
        disk.sync_all(files, [])


def test_directories_that_find_no_descriptor_are_synced_with_those_in_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path)
    disk.make_directory("d")
    attempts: list[Path] = []
    real = real_disk.sync_directory

    def short_of_descriptors(directory: Path) -> None:
        attempts.append(directory)
        if len(attempts) == 1:
            raise OSError(errno.EMFILE, "too many open files")
        real(directory)

    monkeypatch.setattr(real_disk, "sync_directory", short_of_descriptors)

    disk.sync_all([], ["d"])

    assert attempts == [tmp_path / "d"] * 2
