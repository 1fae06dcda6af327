"""The body of a CURSOR record, as bytes and back: one `Move` of a durable subscription.

The record's destination is the fanout. The body is a msgpack map; keys that are absent have their empty value, and keys
that this version does not know are ignored, so later versions can add to it. Vectors are `[[node, incarnation,
sequence], …]`, ranges `[[node, incarnation, [after, through, after, through, …]], …]`.
"""

from typing import Any

import msgpack

from qmq.errors import CorruptLog
from qmq.model.cursors import Holder, Move, Name, Owner, Range
from qmq.model.dots import Origin, Vector


def pack_move(move: Move) -> bytes:
    """Everything of `move` but its destination."""
    found: dict[str, object] = {"client": move.name.client, "name": move.name.name, "created": move.created_us}
    if move.deleted_us:
        found["deleted"] = move.deleted_us
    if move.start is not None:
        found["start"] = _pack_vector(move.start)
    if move.done:
        found["done"] = [
            [origin.node, origin.incarnation, [edge for one in ranges for edge in one]]
            for origin, ranges in move.done.items()
        ]
    if move.credit:
        found["credit"] = move.credit
    if move.delivered_up_to is not None:
        found["told"] = _pack_vector(move.delivered_up_to)
    if move.holder is not None:
        stamp, node = move.holder
        found["holder"] = [stamp, *node]
    if move.owner is not None:
        found["owner"] = list(move.owner)
    packed: bytes = msgpack.packb(found)
    return packed


def unpack_move(destination: str, body: bytes) -> Move:
    """The inverse of `pack_move`. Raises CorruptLog for anything else."""
    try:
        found = msgpack.unpackb(body)
        done: dict[Origin, list[Range]] = {
            Origin(node, incarnation): list(zip(edges[::2], edges[1::2], strict=True))
            for node, incarnation, edges in found.get("done", ())
        }
        return Move(
            Name(destination, found["client"], found["name"]),
            found["created"],
            found.get("deleted", 0),
            start=_unpack_vector(found.get("start")),
            done=done,
            credit=found.get("credit", 0),
            delivered_up_to=_unpack_vector(found.get("told")),
            holder=_unpack_holder(found.get("holder")),
            owner=_unpack_owner(found.get("owner")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a move of a cursor: {error}") from error


def _unpack_holder(found: list[Any] | None) -> Holder | None:
    if found is None:
        return None
    stamp, node, incarnation = found
    return int(stamp), Origin(node, incarnation)


def _unpack_owner(found: list[Any] | None) -> Owner | None:
    if found is None:
        return None
    stamp, user = found
    return int(stamp), str(user)


def _pack_vector(vector: Vector) -> list[list[object]]:
    return [[origin.node, origin.incarnation, last] for origin, last in vector.items()]


def _unpack_vector(found: list[tuple[str, int, int]] | None) -> Vector | None:
    if found is None:
        return None
    return {Origin(node, incarnation): last for node, incarnation, last in found}
