"""Durable subscriptions, terms and definitions at a start: what the catalog has of them, and what the journal says
since its checkpoint.

A pass of its own over that range: the broker keeps every cursor in memory, while what recovery makes of messages goes
into stores. Only the records that are looked for are decoded.
"""

from typing import Final

from qmq.cursors import Cursor, Name
from qmq.definitions.table import DefinitionTable
from qmq.deletions import Deletion, Deletions
from qmq.dots import Dot, Vector, merge
from qmq.lost_ranges import LostRanges
from qmq.storage.catalog.facts import stable_of
from qmq.storage.format.batch import GAPS, record_slices
from qmq.storage.format.cursor_record import unpack_move
from qmq.storage.format.definition_record import readable_definition
from qmq.storage.format.delete_record import deletions_of, unpack_delete
from qmq.storage.format.interfaces import Catalog
from qmq.storage.format.lost_record import lost_of, unpack_lost
from qmq.storage.format.record import KIND_OFFSET, RecordKind, unpack_gap, unpack_record
from qmq.storage.format.term_record import StoredTerms, TermNote, is_term, unpack_term
from qmq.storage.log.journal import Journal

_READ_BYTES: Final = 1024 * 1024


def replay_cursors(
    journal: Journal, catalog: Catalog, position: int
) -> tuple[dict[Name, Cursor], Vector, LostRanges, list[TermNote], Deletions, DefinitionTable]:
    """The cursors by name, what this node has given up, what is gone, the terms and votes that count, the deletions
    of fanouts, and the definitions, at the end of the journal.

    `position`: the checkpoint's.
    """
    cursors = catalog.cursors()
    given_up = catalog.given_up()
    facts = catalog.facts()
    lost = lost_of(facts)
    deletions = deletions_of(facts)
    terms = StoredTerms.of(catalog.terms())
    definitions = DefinitionTable(catalog.definitions(), stable_of(facts))
    while batches := journal.read(position, _READ_BYTES):
        for start, head, data in batches:
            position = start + head.size
            own_gaps = head.attributes & GAPS and head.origin.node == journal.node
            for packed in record_slices(data):
                kind = packed[KIND_OFFSET]
                if kind == RecordKind.CURSOR:
                    record = unpack_record(packed)
                    move = unpack_move(record.destination, record.body)
                    cursors.setdefault(move.name, Cursor(move.name)).apply(move)
                elif kind == RecordKind.GAP and own_gaps:
                    origin, through = unpack_gap(unpack_record(packed).body)
                    merge(given_up, {origin: through})
                elif kind == RecordKind.GONE and head.origin.node == journal.node:
                    span = unpack_lost(unpack_record(packed).body)
                    lost.add(span.origin, span.last)
                elif kind == RecordKind.DELETE:
                    record = unpack_record(packed)
                    dot = Dot(head.origin, record.sequence)
                    deletions.add(Deletion(record.destination, dot, record.timestamp_us, unpack_delete(record.body)))
                elif kind == RecordKind.DEFINITION:
                    change = readable_definition(unpack_record(packed).body)
                    if change is not None:
                        definitions.merge(change)
                elif is_term(kind, head.origin.node, journal.node):
                    terms.take(unpack_term(kind, unpack_record(packed).body))
    return cursors, given_up, lost, list(terms.values()), deletions, definitions
