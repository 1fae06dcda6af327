"""ERROR frames, and which of them leave a client connected that requested it (`on-error:keep-open`)."""

from qmq.errors import ProtocolError, Refused
from qmq.wire.stomp import SUPPORTED_VERSIONS, Version, encode_frame

KEEP_OPEN_CODES = frozenset(
    {
        "queue-full",
        "queue-paused",
        "user-full",
        "too-many-queues",
        "disk-full",
        "memory-full",
        "bad-destination",
        "unknown-destination",
        "unroutable",
        "bad-body",
        "schema-missing",
        "too-many-copies",
        "too-many-destinations",
        "too-many-patterns",
        "too-many-selectors",
        "too-many-retained",
        "not-allowed",
        "too-few-copies",
        "durable-in-use",
        "not-caught-up",
        "too-many-durables",
    }
)
"""Refusals after which a client may ask to stay connected: the frame was right, the moment or the user was not."""


def encode_error(
    error: ProtocolError | Refused, receipt: str | None, version: Version, subscription: str | None = None
) -> bytes:
    """An ERROR frame: `message` for people, `error-code` for programs, `receipt-id` when there was a receipt,
    `subscription` when it is about one."""
    headers = [("message", error.message), ("error-code", error.code), ("content-type", "text/plain")]
    if receipt is not None:
        headers.append(("receipt-id", receipt))
    if subscription is not None:
        headers.append(("subscription", subscription))
    if error.code == "version-unsupported":
        headers.append(("version", SUPPORTED_VERSIONS))
    return encode_frame("ERROR", headers, (error.detail or error.message).encode(), version=version)
