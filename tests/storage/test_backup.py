"""Backups: what a running node had is in them, an interrupted one does not count, and any damage is found."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from qmq.errors import StorageError
from qmq.storage import backup, backup_files
from qmq.storage.backup import NewBackup, backups, restore, verify_backup
from qmq.storage.backup_files import CopiedFile, LocalFiles
from qmq.storage.disk.disk import BACKUP_FILE
from qmq.storage.format.settings import StoreSettings
from qmq.storage.store import Store, open_store
from qmq.storage.verify import dump

from .rig import NOW, A, B, Writer

SETTINGS = StoreSettings(segment_bytes_max=1500, journal_keep_bytes=0, reserve_bytes=0)


class Running:
    """A node's store with several segments, a fanout log and a checkpoint, that goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store: Store = open_store(path, node="a", settings=SETTINGS)
        self.a, self.b = Writer(A), Writer(B)
        self.write(5)
        self.checkpoint()
        self.write(1)

    def write(self, count: int) -> None:
        for n in range(count):
            batches = [self.a.published("/queue/q", b"%d" % n * 300), self.b.published("/fanout/f", b"f", b"g")]
            self.store.journal.append(batches)
        self.store.journal.sync()

    def checkpoint(self) -> None:
        members = {"a": self.store.journal.vector()}
        self.store.checkpoint(self.store.journal.end, NOW, members)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path / "data")
    yield made
    made.store.close()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def back_up(data: Path, repository: Path) -> NewBackup:
    return backup.back_up(LocalFiles(data), repository, datetime.now(UTC))


def restored(source: Path, data: Path) -> Store:
    restore(source, data)
    return open_store(data, node="a", settings=SETTINGS)


def test_what_a_running_node_had_is_restored(running: Running, repository: Path, tmp_path: Path) -> None:
    made = back_up(running.path, repository)
    vector = running.store.journal.vector()
    running.write(5)

    assert verify_backup(made.path) == []
    assert made.path.parent == repository / "a"
    store = restored(made.path, tmp_path / "other")
    assert store.journal.vector() == vector
    assert store.fanout_info("/fanout/f").records == 12
    assert not store.damage()
    store.close()


def test_a_second_backup_copies_only_what_is_new(running: Running, repository: Path, tmp_path: Path) -> None:
    first = back_up(running.path, repository)
    running.write(1)
    second = back_up(running.path, repository)

    assert second.copied_bytes < second.total_bytes
    sealed = sorted((first.path / "journal").iterdir())[0].name
    assert (first.path / "journal" / sealed).samefile(second.path / "journal" / sealed)
    shutil.rmtree(first.path)
    assert verify_backup(second.path) == []
    assert backups(repository) == [second.path]


def test_files_that_a_checkpoint_drops_meanwhile_begin_the_copy_again(
    running: Running, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_database = backup_files._copy_database

    def then_checkpoint(database: Path, into: Path) -> CopiedFile:
        made = copy_database(database, into)
        if into.parent.name.endswith(".0.tmp") and database.name == "queues.sqlite":
            running.write(5)
            running.checkpoint()
        return made

    before = sorted((running.path / "journal").iterdir())
    monkeypatch.setattr(backup_files, "_copy_database", then_checkpoint)
    made = back_up(running.path, repository)

    assert not before[-1].exists(), "the checkpoint has dropped nothing: the test shows nothing"
    assert verify_backup(made.path) == []
    assert not list(made.path.parent.glob("*.tmp"))
    store = restored(made.path, tmp_path / "other")
    assert store.fanout_info("/fanout/f").records == 2 * 11
    assert not store.damage()
    store.close()


def test_what_is_checkpointed_after_the_journal_was_copied_is_in_no_database_of_the_copy(
    running: Running, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = backup_files.copy_file
    last = sorted((running.path / "journal").iterdir())[-1]

    def then_checkpoint(file: Path, into: Path | None) -> tuple[int, str]:
        made = copy(file, into)
        if file == last:
            running.write(1)
            running.checkpoint()
        return made

    monkeypatch.setattr(backup_files, "copy_file", then_checkpoint)
    made = back_up(running.path, repository)
    monkeypatch.undo()

    assert verify_backup(made.path) == []


def test_a_killed_backup_does_not_count_and_the_next_one_is_whole(running: Running, repository: Path) -> None:
    first = back_up(running.path, repository)
    running.write(5)
    program = f"""
import os, signal
from datetime import UTC, datetime
from pathlib import Path
from qmq.storage import backup, backup_files
from qmq.storage.backup_files import CopiedFile, LocalFiles
def killed(directory): os.kill(os.getpid(), signal.SIGKILL)
backup._sync_directories = killed
backup.back_up(LocalFiles(Path({str(running.path)!r})), Path({str(repository)!r}), datetime.now(UTC))
"""
    code = subprocess.run([sys.executable, "-c", program]).returncode

    assert code == -signal.SIGKILL
    assert list((repository / "a").glob("*.tmp"))
    assert backups(repository) == [first.path]
    assert verify_backup(first.path) == []
    second = back_up(running.path, repository)
    assert verify_backup(second.path) == []
    assert not list((repository / "a").glob("*.tmp"))


def test_a_flipped_bit_in_any_file_is_found_and_not_restored(
    running: Running, repository: Path, tmp_path: Path
) -> None:
    made = back_up(running.path, repository).path
    for file in [one for one in made.rglob("*") if one.is_file()]:
        sound = file.read_bytes()
        bent = bytearray(sound)
        bent[len(bent) // 2] ^= 1
        file.write_bytes(bent)
        assert verify_backup(made), file
        with pytest.raises(StorageError):
            restore(made, tmp_path / "other" / file.name)
        file.write_bytes(sound)
    assert verify_backup(made) == []


def test_a_torn_copy_of_a_backup_is_found(running: Running, repository: Path) -> None:
    made = back_up(running.path, repository).path
    last = sorted((made / "journal").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:-1])
    assert verify_backup(made) == [f"journal/{last.name} is damaged: its size or its checksum does not fit"]
    last.unlink()
    assert verify_backup(made) == [f"journal/{last.name} cannot be read: No such file or directory"]
    (made / BACKUP_FILE).unlink()
    assert verify_backup(made) == [f"{made} is no backup, or an incomplete one: it has no backup.json"]
    assert backups(repository) == [made]


def test_damage_of_the_node_itself_is_named(running: Running, repository: Path) -> None:
    running.write(3)
    running.store.close()
    first = sorted((running.path / "journal").iterdir())[0]
    content = bytearray(first.read_bytes())
    content[content.index(b"0" * 300)] ^= 1
    first.write_bytes(content)

    made = back_up(running.path, repository)

    assert verify_backup(made.path) == [f"journal/{first.name} was damaged before it was copied"]
    running.store = open_store(running.path, node="a", settings=SETTINGS)


def test_a_backup_is_only_restored_to_an_empty_directory(running: Running, repository: Path, tmp_path: Path) -> None:
    made = back_up(running.path, repository).path
    target = tmp_path / "other"
    target.mkdir()
    (target / "mine").write_bytes(b"")

    with pytest.raises(StorageError, match="is not empty"):
        restore(made, target)
    assert os.listdir(target) == ["mine"]
    with pytest.raises(StorageError, match="a backup of the node a, not of b"):
        restore(made, tmp_path / "third", "b")
    assert not (tmp_path / "third").exists()


def test_no_node_opens_a_backup_or_half_a_restore(running: Running, repository: Path, tmp_path: Path) -> None:
    made = back_up(running.path, repository).path
    with pytest.raises(StorageError, match="is a backup, or an incomplete restore"):
        open_store(made, node="a", settings=SETTINGS)
    assert verify_backup(made) == []

    (made / "queues.sqlite").unlink()
    target = tmp_path / "other"
    with pytest.raises(StorageError, match="is missing"):
        restore(made, target)
    with pytest.raises(StorageError, match="incomplete restore"):
        open_store(target, node="a", settings=SETTINGS)


def test_queues_in_postgresql_are_refused(running: Running, repository: Path) -> None:
    running.store.catalog.set_facts({"queues-in": "postgresql"})
    with pytest.raises(StorageError, match="are in PostgreSQL"):
        back_up(running.path, repository)
    running.store.catalog.set_facts({"queues-in": "sqlite"})


def test_what_is_no_data_directory_is_refused(running: Running, repository: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="has no catalog"):
        back_up(tmp_path, repository)
    with pytest.raises(StorageError, match="lies in the data directory itself"):
        back_up(running.path, running.path / "backups")


def test_two_backups_of_a_node_at_once_are_refused(running: Running, repository: Path) -> None:
    back_up(running.path, repository)
    with backup._locked(repository / "a"), pytest.raises(StorageError, match="another process makes a backup"):
        back_up(running.path, repository)


def test_a_stopped_node_and_a_restored_one_are_backed_up(running: Running, repository: Path, tmp_path: Path) -> None:
    running.store.close()
    made = back_up(running.path, repository)
    assert verify_backup(made.path) == []
    restore(made.path, tmp_path / "other")

    again = back_up(tmp_path / "other", repository)

    assert verify_backup(again.path) == []
    assert list(dump(again.path)) == list(dump(running.path))
    running.store = open_store(running.path, node="a", settings=SETTINGS)


def test_a_clock_that_is_behind_the_last_backup_is_refused(running: Running, repository: Path) -> None:
    back_up(running.path, repository)
    with pytest.raises(StorageError, match="the clock is behind the last backup"):
        backup.back_up(LocalFiles(running.path), repository, datetime(2001, 1, 1, tzinfo=UTC))
