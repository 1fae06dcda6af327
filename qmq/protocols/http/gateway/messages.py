"""Messages in JSON."""

import base64
from typing import Any, Final

from qmq.broker.messages.copy_budget import COPIES_LEFT
from qmq.broker.messages.dedup import RETRY, SENDER
from qmq.broker.messages.message import Message
from qmq.broker.selectors import properties_of

CONTENT_TYPE: Final = "content-type"

NOT_SHOWN: Final = frozenset({"destination", "persistent", COPIES_LEFT, RETRY, SENDER})
"""What a selector sees beside the headers of the sender, and headers of the node itself."""


def facts_of(message: Message) -> dict[str, Any]:
    """A message as JSON shows it: its body as text if it is UTF-8, else in base64."""
    headers = {name: value for name, value in properties_of(message.envelope).items() if name not in NOT_SHOWN}
    facts: dict[str, Any] = {"id": message.message_id, "destination": message.envelope.destination}
    content_type = headers.pop(CONTENT_TYPE, None)
    facts["headers"] = headers
    if content_type is not None:
        facts["content_type"] = content_type
    try:
        facts["body"] = message.body.decode()
    except UnicodeDecodeError:
        facts["body_base64"] = base64.b64encode(message.body).decode()
    return facts
