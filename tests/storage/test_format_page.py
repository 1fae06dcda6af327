import re
import struct
from pathlib import Path

import pytest

from qmq.storage.format import batch, segment
from qmq.storage.format.record import RecordKind

PAGE = (Path(__file__).parents[2] / "docs" / "storage-format.md").read_text("utf-8")
TYPES = {"H": "u16", "I": "u32", "Q": "u64", "4s": "4s", "32s": "32s"}


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        (batch.FIELDS, 0),
        (segment.HEAD_FIELDS, 0),
        (segment.TRAILER_FIELDS, -sum(struct.calcsize(">" + code) for _, code, _ in segment.TRAILER_FIELDS)),
    ],
)
def test_the_page_shows_every_field_where_the_code_puts_it(
    fields: tuple[tuple[str, str, str], ...], start: int
) -> None:
    rows = []
    for name, code, _ in fields:
        rows.append(rf"\| {start} \| {name} \| {TYPES[code]} \| .*")
        start += struct.calcsize(">" + code)

    assert re.search("\n".join(rows), PAGE)


def test_the_page_names_every_kind_and_every_magic() -> None:
    for kind in RecordKind:
        assert f"| {int(kind)} | {kind.name} |" in PAGE
    for magic in (batch.BATCH_MAGIC, segment.SEGMENT_MAGIC, segment.FOOTER_MAGIC):
        assert f"`{magic.hex(' ')}`" in PAGE
