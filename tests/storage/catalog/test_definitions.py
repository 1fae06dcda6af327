"""Definitions at a start: what the journal has of them, also when a record is unreadable."""

import pytest

from qmq.definitions.definition import Definition, Key, Version
from qmq.storage.format.definition_record import pack_definition
from qmq.storage.format.record import RecordKind
from qmq.storage.opening import replay_cursors
from tests.fakes.disk import MemoryDisk

from ..rig import NOW, A, Writer, open_small

GOOD = Definition(Key("policy", "/queue/good"), Version(5, 0, A, 2), "{}")
BAD = Definition(Key("policy", "/queue/bad"), Version(5, 0, A, 1), "[1]")


def test_an_unreadable_record_is_left_out_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    store = open_small(MemoryDisk())
    writer = Writer(A)
    for change in (BAD, GOOD):
        writer.record(RecordKind.DEFINITION, pack_definition(change))
    store.journal.append([writer.batch()])

    replayed = replay_cursors(store.journal, store.catalog, 0)[-1]
    store.checkpoint(store.journal.end, NOW, {})

    assert list(replayed.by_key.values()) == [GOOD]
    assert store.catalog.definitions() == [GOOD]
    assert caplog.text.count("is left out: not a definition: a value that is no JSON object") == 2
