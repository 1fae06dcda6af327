import shutil
from pathlib import Path

import pytest

from qmq.model.dots import Origin
from qmq.storage.format.batch import read_head
from qmq.storage.format.settings import StoreSettings
from qmq.storage.store import Store, open_store
from qmq.storage.verify import PREVIEW_BYTES, dump, verify

from .rig import LIKE_AN_INDEX, NOW, A, B, Writer

SETTINGS = StoreSettings(segment_bytes_max=1500, reserve_bytes=0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A node's directory with several segments, a fanout log and a checkpoint; still running."""
    opened = open_store(tmp_path, node="a", settings=SETTINGS)
    a, b = Writer(A), Writer(B)
    for n in range(5):
        batches = [a.published("/queue/q", b"%d" % n * 300), b.published("/fanout/f", b"f", b"g")]
        opened.journal.append(batches)
    opened.checkpoint(opened.journal.end, NOW, {})
    opened.journal.append([a.published("/queue/q", b"last" * 100)])
    return opened


def journal_files(path: Path) -> list[Path]:
    return sorted((path / "journal").iterdir())


def test_a_sound_directory_has_no_damage_also_while_its_node_runs(store: Store, tmp_path: Path) -> None:
    report = verify(tmp_path)

    assert not report.damaged
    journal = [segment for segment in report.segments if segment.path.startswith("journal")]
    assert sum(segment.records for segment in journal) == 6 + 10
    assert [segment.sealed for segment in journal] == [True] * (len(journal) - 1) + [False]
    assert sum(segment.records for segment in report.segments) == 16 + 10
    store.close()
    assert not verify(tmp_path).damaged


def test_a_copy_whose_databases_are_ahead_of_its_journal_is_not_consistent(store: Store, tmp_path: Path) -> None:
    node, copy = tmp_path, tmp_path.with_name("copy")
    shutil.copytree(node, copy)
    assert verify(copy).inconsistent == ()

    # The journal is copied, the node goes on, and then its databases are copied.
    store.journal.append([Writer(Origin("c", 1)).published("/queue/q", b"later" * 100)])
    store.checkpoint(store.journal.end, NOW, {})
    for file in node.glob("*.sqlite*"):
        shutil.copy(file, copy)
    report = verify(copy)

    assert report.damaged
    assert [text.partition(" ")[0] for text in report.inconsistent] == ["catalog.sqlite", "queues.sqlite"]
    assert not verify(node).damaged
    store.close()


def test_a_flipped_bit_in_a_waiting_message_is_found(store: Store, tmp_path: Path) -> None:
    store.close()
    queues, catalog = tmp_path / "queues.sqlite", tmp_path / "catalog.sqlite"
    sound, body = queues.read_bytes(), b"3" * 300
    assert [report.rows for report in verify(tmp_path).databases] == [0, 5]

    queues.write_bytes(sound.replace(body, b"2" + body[1:], 1))
    report = verify(tmp_path)

    assert report.damaged
    assert report.databases[1].damaged_rows == (f"{A}:4 of /queue/q",)
    queues.write_bytes(sound)
    assert not verify(tmp_path).damaged
    whole = catalog.read_bytes()
    catalog.write_bytes(whole.replace(f'{{"{A}"'.encode(), f'{{"c{str(A)[1:]}"'.encode()))
    assert verify(tmp_path).databases[0].error == "a row of positions is damaged"
    catalog.write_bytes(whole)
    catalog.write_bytes(catalog.read_bytes()[:-20_000])
    assert verify(tmp_path).databases[0].error
    assert verify(tmp_path).damaged


def test_what_is_just_being_written_is_not_yet_there_and_no_damage(store: Store, tmp_path: Path) -> None:
    store.close()
    with journal_files(tmp_path)[-1].open("ab") as file:
        file.write(Writer(A, have=6).published("/queue/q", b"x")[:-1])

    report = verify(tmp_path)

    assert not report.damaged
    assert [segment.tail_bytes > 0 for segment in report.segments][len(journal_files(tmp_path)) - 1]


@pytest.mark.parametrize("what", LIKE_AN_INDEX)
def test_a_body_that_ends_like_an_index_does_not_hide_what_is_there(tmp_path: Path, what: str) -> None:
    store = open_store(tmp_path, node="a", settings=SETTINGS)
    a = Writer(A)
    for _ in range(5):
        store.journal.append([a.published("/queue/q", b"x" * 600 + LIKE_AN_INDEX[what])])

    report = verify(tmp_path)
    store.close()

    assert not report.damaged
    assert not any(segment.sealed for segment in report.segments)
    assert sum(segment.records for segment in report.segments) == 5


@pytest.mark.parametrize("where", ["head", "body", "batch head"])
def test_damage_is_found_in_the_segment_that_has_it_and_nowhere_else(store: Store, tmp_path: Path, where: str) -> None:
    store.close()
    path = journal_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[{"head": 20, "body": data.index(b"000"), "batch head": data.index(b"QMQ\xb1") + 20}[where]] ^= 1
    path.write_bytes(bytes(data))

    report = verify(tmp_path)

    assert report.damaged
    assert [segment.path for segment in report.segments if segment.damaged] == [f"journal/{path.name}"]


def test_a_hole_in_an_origin_is_a_violation(store: Store, tmp_path: Path) -> None:
    store.close()
    with journal_files(tmp_path)[-1].open("ab") as file:
        file.write(Writer(A, have=8).published("/queue/q", b"x"))

    report = verify(tmp_path)

    assert [(v.origin, v.expected, v.found) for segment in report.segments for v in segment.violations] == [(A, 7, 9)]


def test_damage_that_the_node_has_put_aside_is_known_and_not_counted_again(store: Store, tmp_path: Path) -> None:
    store.journal.append([Writer(B, have=10).published("/fanout/f", b"more")])
    store.close()
    path = journal_files(tmp_path)[-1]
    data = bytearray(path.read_bytes())
    data[data.index(b"lastlast")] ^= 1
    path.write_bytes(bytes(data))
    assert verify(tmp_path).damaged

    open_store(tmp_path, node="a", settings=SETTINGS).close()
    report = verify(tmp_path)

    assert not report.damaged
    assert len(report.quarantined) == 1


def test_a_directory_without_a_journal_is_an_error_and_stays_untouched(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no journal"):
        verify(tmp_path)
    with pytest.raises(FileNotFoundError):
        next(dump(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_dump_shows_every_record_in_order_with_previews(store: Store, tmp_path: Path) -> None:
    records = list(dump(tmp_path))

    assert [(r.origin, r.sequence) for r in records][:3] == [(A, 1), (B, 1), (B, 2)]
    assert records[-1].body == b"last" * (PREVIEW_BYTES // 4)
    assert list(dump(tmp_path, whole=True))[-1].body == b"last" * 100
    assert {r.kind for r in records} == {"PUBLISH"}
    assert [r.position for r in records] == sorted(r.position for r in records)
    assert len(list(dump(tmp_path, destination="/fanout/f"))) == 10
    position, head, _ = store.journal.read(records[-1].position, 1)[0]
    assert (position, head.last) == (records[-1].position, 6)
    store.close()


def test_a_dump_names_kinds_it_does_not_know_by_number(store: Store, tmp_path: Path) -> None:
    writer = Writer(A, have=6)
    writer.record(200, b"later")
    data = writer.batch()
    assert read_head(data) is not None
    store.journal.append([data])
    store.close()

    assert list(dump(tmp_path))[-1].kind == "200"
