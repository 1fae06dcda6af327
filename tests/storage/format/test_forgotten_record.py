"""Bodies of FORGOTTEN records."""

import msgpack
import pytest

from qmq.errors import CorruptLog
from qmq.model.dots import Dot, Origin
from qmq.storage.format.forgotten_record import FIELD, pack_forgotten, unpack_forgotten

A, B = Origin("a", 1), Origin("b", 2**64 - 1)


def test_the_ids_come_back_and_other_fields_are_ignored() -> None:
    ids = {Dot(A, 1): b"x" * 16, Dot(B, 7): b"y" * 16, Dot(A, 2): b"z" * 16}
    body = pack_forgotten(ids)

    assert unpack_forgotten(body) == ids
    assert unpack_forgotten(msgpack.packb({**msgpack.unpackb(body), "later": 1})) == ids
    assert FIELD.encode() in body


@pytest.mark.parametrize(
    "value", [[], {}, {FIELD: 1}, {FIELD: [["a", 1, [1]]]}, {FIELD: [["a", 1, [1, "text"]]]}, {FIELD: [["a", -1, []]]}]
)
def test_anything_else_is_corrupt(value: object) -> None:
    with pytest.raises(CorruptLog):
        unpack_forgotten(msgpack.packb(value))
