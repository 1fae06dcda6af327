"""The archive that a mesh has defined, as nodes say it to an archiver."""

import pytest

from qmq.errors import NotConnected
from qmq.spark.archive.defined import LOOK_SECONDS, DefinedArchive
from qmq.spark.archive.table import ArchiveError
from tests.spark.connector.test_remote import JournalNode, asked
from tests.spark.rig import A, split

ALL = {"archive": {"table": "/data/all"}}


def test_the_definition_says_table_destinations_and_iceberg() -> None:
    orders = {"table": "/data/orders", "destinations": ["/queue/orders"], "iceberg": "lake.qmq.orders"}
    node = JournalNode(split(A, 1, 10, 5), archives={**ALL, "orders": orders})

    table, options, iceberg = DefinedArchive(asked(node, name="archive")).find()
    assert (table, options.destinations, iceberg) == ("/data/all", None, None)
    table, options, iceberg = DefinedArchive(asked(node, name="orders")).find()
    assert (table, options.destinations, iceberg) == ("/data/orders", {"/queue/orders"}, "lake.qmq.orders")


def test_a_look_at_the_definition_reports_nothing_of_a_reader() -> None:
    node = JournalNode(split(A, 1, 10, 5), archives=ALL)

    DefinedArchive(asked(node, name="archive")).find()

    assert ["qmq-reader" in frame.head.headers for frame in node.asked] == [False]


def test_a_mesh_without_such_an_archive_is_named() -> None:
    node = JournalNode(split(A, 1, 10, 5), archives=ALL)

    with pytest.raises(ArchiveError, match="no archive other"):
        DefinedArchive(asked(node, name="other")).find()


def test_the_next_node_is_asked_when_one_does_not_answer() -> None:
    gone, node = JournalNode([]), JournalNode([], archives=ALL)
    gone.close()

    assert DefinedArchive(asked(gone, node, name="archive")).find()[0] == "/data/all"
    node.close()
    with pytest.raises(NotConnected):
        DefinedArchive(asked(gone, node, name="archive")).find()


def test_a_changed_definition_is_seen_once_a_minute() -> None:
    node = JournalNode([], archives=ALL)
    defined = DefinedArchive(asked(node, name="archive"))
    defined.find()

    assert not defined.has_changed(0.0)
    node.archives = {"archive": {"table": "/data/other"}}
    assert not defined.has_changed(LOOK_SECONDS - 1)
    assert defined.has_changed(LOOK_SECONDS)
    node.close()
    assert not defined.has_changed(2 * LOOK_SECONDS), "unknown: the archiver goes on"
