"""DELETE records: a fanout is deleted up to a vector, as bytes and back; and how the catalog remembers them.

The record's destination is the fanout. Its body is a msgpack map with `before`, the vector as `[[node, incarnation,
sequence], …]`; keys that this version does not know are ignored. It counts on every node, whatever node wrote it. A
message can arrive long after the record has left the journal, so the catalog remembers it (`facts`).
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final

import msgpack

from qmq.errors import CorruptLog
from qmq.model.deletions import Deletion, Deletions
from qmq.model.dots import Dot, Origin, Vector, parse_origin
from qmq.storage.format.record import INCARNATION_MAX, RecordKind, number_of, pack_envelope, pack_record, text_of

DELETED: Final = "deleted/"
"""Before the name of the fanout, in the catalog's table of facts."""


def pack_delete(before: Vector) -> bytes:
    """Body of a DELETE."""
    vector = [[origin.node, origin.incarnation, last] for origin, last in before.items()]
    packed: bytes = msgpack.packb({"before": vector})
    return packed


def unpack_delete(body: bytes) -> Vector:
    """The inverse of `pack_delete`. Raises CorruptLog for anything else."""
    try:
        vector = msgpack.unpackb(body)["before"]
        return {
            Origin(text_of(node), number_of(incarnation, INCARNATION_MAX)): number_of(last)
            for node, incarnation, last in vector
        }
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a deletion: {error}") from error


def packed_deletion(deletion: Deletion) -> bytes:
    """The record that `deletion` came as, packed."""
    envelope = pack_envelope(deletion.destination, b"")
    body = pack_delete(deletion.before)
    return pack_record(deletion.dot.sequence, deletion.timestamp_us, RecordKind.DELETE, 0, envelope, body)


def deletions_of(facts: Mapping[str, str]) -> Deletions:
    """What the catalog remembers."""
    found: list[Deletion] = []
    for name, text in facts.items():
        if name.startswith(DELETED):
            for origin, sequence, timestamp_us, vector in json.loads(text):
                before = {parse_origin(one): last for one, last in vector.items()}
                dot = Dot(parse_origin(origin), sequence)
                found.append(Deletion(name.removeprefix(DELETED), dot, timestamp_us, before))
    return Deletions(found)


def deletion_facts(deletions: Deletions, destinations: Iterable[str]) -> dict[str, str | None]:
    """How the deletions of these fanouts are remembered; None: not any more."""
    return {f"{DELETED}{name}": _text(deletions.by_name.get(name, ())) for name in destinations}


def _text(known: Iterable[Deletion]) -> str | None:
    rows = [
        [str(one.dot.origin), one.dot.sequence, one.timestamp_us, {str(o): last for o, last in one.before.items()}]
        for one in known
    ]
    return json.dumps(rows) if rows else None
