"""Terms on disk: the body of a TERM or VOTE record, and what all of them come to.

A TERM says that `server` serves the queue messages of `owner` from that term on. A VOTE says that the node that wrote
it has voted for `server` in that term, and will vote for no other node in it. Both matter for as long as the node
exists, longer than the journal is kept, so the catalog takes them over at a checkpoint.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgpack

from qmq.errors import CorruptLog
from qmq.storage.format.record import RecordKind, number_of, text_of


class TermNote(NamedTuple):
    """What one record says. `is_vote` only of the node's own votes: what others have voted is their business."""

    owner: str
    number: int
    server: str
    is_vote: bool


def pack_term(owner: str, number: int, server: str) -> bytes:
    """The body of either record. An array, so that later versions can add to it."""
    packed: bytes = msgpack.packb([owner, number, server])
    return packed


def unpack_term(kind: int, body: bytes) -> TermNote:
    """The inverse of `pack_term`. Raises CorruptLog for anything else."""
    try:
        owner, number, server = msgpack.unpackb(body)[:3]
        return TermNote(text_of(owner), number_of(number), text_of(server), kind == RecordKind.VOTE)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a term: {error}") from error


class StoredTerms(dict[tuple[str, bool], TermNote]):
    """(owner, whether it is a vote) → the note that counts: of the highest term, the later one of equals."""

    @classmethod
    def of(cls, notes: Iterable[TermNote]) -> "StoredTerms":
        """Those that `notes` come to."""
        terms = cls()
        for note in notes:
            terms.take(note)
        return terms

    def take(self, note: TermNote) -> bool:
        """True when `note` counts now."""
        known = self.get((note.owner, note.is_vote))
        if known is not None and (note.number < known.number or note == known):
            return False
        self[note.owner, note.is_vote] = note
        return True


def is_term(kind: int, writer: str, node: str) -> bool:
    """Whether a record that `writer` wrote is about terms and matters to `node`."""
    return kind == RecordKind.TERM or (kind == RecordKind.VOTE and writer == node)
