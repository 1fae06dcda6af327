"""FORGOTTEN records: an operator has removed messages, and their dedup ids are forgotten on every node.

A message that is sent again with its id is then appended again. A record names message and id, because the id may have
another message by then, which stays known.

Surprising: the name of the only field has a colon. So a start that reads the journal for ids finds these records by the
same bytes as headers (`qmq.mesh.peers.dedup_query`).
"""

from collections.abc import Mapping
from typing import Final

import msgpack

from qmq.errors import CorruptLog
from qmq.model.dots import Dot, Origin
from qmq.storage.format.record import INCARNATION_MAX, number_of, text_of

FIELD: Final = "dedup-id:"


def pack_forgotten(ids: Mapping[Dot, bytes]) -> bytes:
    """Body of a FORGOTTEN: `{"dedup-id:": [[node, incarnation, [sequence, key, …]], …]}`."""
    grouped: dict[Origin, list[int | bytes]] = {}
    for (origin, sequence), key in ids.items():
        grouped.setdefault(origin, []).extend((sequence, key))
    packed: bytes = msgpack.packb({FIELD: [[*origin, found] for origin, found in grouped.items()]})
    return packed


def unpack_forgotten(body: bytes) -> dict[Dot, bytes]:
    """The inverse of `pack_forgotten`; other fields are ignored. Raises CorruptLog for anything else."""
    ids: dict[Dot, bytes] = {}
    try:
        for node, incarnation, values in msgpack.unpackb(body)[FIELD]:
            origin = Origin(text_of(node), number_of(incarnation, INCARNATION_MAX))
            for sequence, key in zip(values[::2], values[1::2], strict=True):
                if type(key) is not bytes:
                    raise ValueError("a key is bytes")
                ids[Dot(origin, number_of(sequence))] = key
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a list of dedup ids: {error}") from error
    return ids
