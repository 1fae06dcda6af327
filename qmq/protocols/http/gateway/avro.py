"""Messages as Avro object container files: `avro/binary` (Avro 1.11 specification, "Object Container Files").

`message.avsc` is the schema of a message in both directions. A client may write with a schema of its own that has
some of its fields, under any name; `avro_reader` reads it.

Surprising: fastavro only writes files, and is imported at the first use. It is an extra, and nothing else needs it.
"""

import io
import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from qmq.errors import Refused
from qmq.protocols.http.gateway.avro_reader import records_in

AVRO: Final = "avro/binary"

SENT_ONLY: Final = ("id", "destination", "ack_token", "redelivered", "delivery_count")
"""Fields of received messages."""


@cache
def schema_page() -> bytes:
    """`message.avsc`."""
    return files("qmq.protocols.http.gateway").joinpath("message.avsc").read_bytes()


@cache
def _schema() -> Any:
    return _fastavro().parse_schema(json.loads(schema_page()))


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise Refused(
            "not-supported", "This node cannot write Avro: it was installed without the extra avro."
        ) from None
    return fastavro


def messages_in(body: bytes, messages_max: int) -> list[dict[str, Any]]:
    """The messages of a file, with the fields that say something. Raises Refused."""
    try:
        records = records_in(body, messages_max)
    except Refused:
        raise
    except Exception as error:  # what Python raises for bytes that make no sense
        raise Refused("bad-body", f"The body is no Avro file of messages: {type(error).__name__}.") from None
    return [
        {name: value for name, value in record.items() if value is not None and value != {} and name not in SENT_ONLY}
        for record in records
    ]


def check_writer() -> None:
    """Raise Refused where `container` would."""
    _fastavro()


def container(messages: Iterable[Mapping[str, Any]]) -> bytes:
    """Received messages, as JSON shows them, as a file. Raises Refused where fastavro is missing."""
    out = io.BytesIO()
    _fastavro().writer(out, _schema(), messages)
    return out.getvalue()
