"""What a selector sees of a message: the headers of its Envelope, parsed once for all messages that share it.

Besides the headers that travel there are `destination`, which distinguishes the topics of a pattern, and `persistent`:
whether the message is kept on disk. What differs between messages of one envelope (message-id, delivery-count) is
not there. Nothing here raises: headers from a peer are taken as they are.
"""

from qmq.broker.messages.message import Envelope, Message
from qmq.broker.selectors.selector import Selector

ANSWERS_MAX = 16
"""Selectors whose answer an envelope remembers; at the bound all are forgotten and asked again."""


def selects(selector: Selector, envelope: Envelope) -> bool:
    """Whether `selector` wants the messages of `envelope`; remembered with it."""
    answers = envelope.answers
    if answers is None:
        answers = envelope.answers = {}
    answer = answers.get(selector.text)
    if answer is None:
        if len(answers) >= ANSWERS_MAX:
            answers.clear()
        answer = answers[selector.text] = selector.matches(properties_of(envelope))
    return answer


def select_within(
    selector: Selector, messages: list[Message], at: int, cost_max: int, wanted: list[Message]
) -> tuple[int, int]:
    """Add those of `messages` from index `at` on that `selector` wants to `wanted`, until asking has cost `cost_max`.

    Returns the index of the first that was not asked about, and what it has cost; an answer that is remembered costs 1.
    """
    selector_cost = 0
    envelope: Envelope | None = None
    answer = False
    count = len(messages)
    while at < count:
        message = messages[at]
        if message.envelope is not envelope:
            if selector_cost >= cost_max:
                break
            envelope = message.envelope
            answers = envelope.answers
            is_known = answers is not None and selector.text in answers
            selector_cost += 1 if is_known else selector.cost_of(len(envelope.headers))
            answer = selects(selector, envelope)
        if answer:
            wanted.append(message)
        at += 1
    return at, selector_cost


def selected(selector: Selector, messages: list[Message]) -> list[Message]:
    """Those of `messages` that `selector` wants, in order; empty when it wants none."""
    wanted: list[Message] = []
    envelope: Envelope | None = None
    answer = False
    for message in messages:
        # A run mostly shares one envelope.
        if message.envelope is not envelope:
            envelope = message.envelope
            answer = selects(selector, envelope)
        if answer:
            wanted.append(message)
    return wanted


def properties_of(envelope: Envelope) -> dict[str, str]:
    """The headers of every message in `envelope`, unescaped; treat as immutable."""
    properties = envelope.properties
    if properties is None:
        properties = envelope.properties = parsed(envelope.headers)
        properties["destination"] = envelope.destination
        properties["persistent"] = "true" if envelope.durable else "false"
    return properties


def parsed(block: bytes) -> dict[str, str]:
    """Lines of a STOMP 1.2 header block, unescaped, the first of repeated ones."""
    properties: dict[str, str] = {}
    text = block.decode("utf-8", "replace")
    escaped = "\\" in text
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        if not colon:
            continue
        if escaped:
            name = _unescaped(name)
            value = _unescaped(value)
        if name not in properties:
            properties[name] = value
    return properties


def _unescaped(text: str) -> str:
    """STOMP 1.2, "Value Encoding". Split at the escaped backslash, which must not begin another escape."""
    if "\\" not in text:
        return text
    parts = [part.replace("\\n", "\n").replace("\\c", ":").replace("\\r", "\r") for part in text.split("\\\\")]
    return "\\".join(parts)
