"""The body of a RETIRE record, and the same as text in the catalog: a map, so that later versions can add to it."""

import json

import msgpack

from qmq.dots import Origin, parse_origin
from qmq.errors import CorruptLog
from qmq.members import Retirement


def pack_retirement(retirement: Retirement) -> bytes:
    """The body of a RETIRE record."""
    packed: bytes = msgpack.packb(
        {
            "node": retirement.node,
            "adopter": retirement.adopter,
            "sealed": {origin.incarnation: last for origin, last in retirement.sealed.items()},
        }
    )
    return packed


def unpack_retirement(body: bytes) -> Retirement:
    """The inverse of `pack_retirement`. Raises CorruptLog for anything else."""
    try:
        found = msgpack.unpackb(body, strict_map_key=False)
        node, adopter = found["node"], found["adopter"]
        sealed = {Origin(node, int(number)): int(last) for number, last in found["sealed"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a retirement: {error!r}") from error
    if type(node) is not str or type(adopter) is not str:
        raise CorruptLog("not a retirement: a name is no text")
    return Retirement(node=node, adopter=adopter, sealed=sealed)


def retirement_text(retirement: Retirement) -> str:
    """For the catalog."""
    sealed = {str(origin): last for origin, last in retirement.sealed.items()}
    return json.dumps({"adopter": retirement.adopter, "sealed": sealed})


def read_retirement(node: str, text: str) -> Retirement:
    """The inverse of `retirement_text`."""
    found = json.loads(text)
    sealed = {parse_origin(origin): last for origin, last in found["sealed"].items()}
    return Retirement(node=node, adopter=found["adopter"], sealed=sealed)
