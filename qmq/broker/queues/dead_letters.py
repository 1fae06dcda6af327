"""Dead letters: messages that no consumer will get are settled in their queue and accepted again in a dead letter
queue.

One record does both. So wherever the log is cut, a message is in its queue or among the dead letters, never in both and
never in neither. The dead letter has the sender's headers, and before these the reason. Headers that limited the life
of the message (`expires`, `ttl`, `delay`) are left out. The defaults of the new queue apply to what the headers do not
set.

If the target is an exchange, each queue that its bindings choose gets a dead letter, with its share of the copies that
the message may become (`copy_budget`). A dead letter that no binding chooses, or that would have no share, goes to the
default dead letter queue.

Rules may form cycles. A dead letter of an exchange never goes to the queue that it leaves, and no dead letter goes to a
queue that it has left without a consumer since a consumer last refused it. Headers name these queues.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from qmq.broker.consumers.outcome import DEAD_LETTER_COST, Outcome
from qmq.broker.messages.copy_budget import copies_left, share_line
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.limits import COPIES_BYTES_MAX
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.messages.rules import DEAD_LETTERS
from qmq.broker.queues.dead_letter_history import HISTORY, THROUGH, came_through, history_after
from qmq.broker.selectors.properties import properties_of
from qmq.model.dots import Dot
from qmq.model.routing_names import PREFIX, prefix_of

REJECTED: Final = "rejected"
DELIVERY_LIMIT: Final = "delivery-limit"
EXPIRED: Final = "expired"
OVERFLOW: Final = "overflow"

_LEFT_OUT = re.compile(
    rb"^(?:dead-letter-reason|dead-letter-from|dead-letter-id|dead-letter-deliveries|dead-letter-path"
    rb"|dead-letter-through|dead-letter-history|qmq-copies-left|expires|expiration|ttl|delay|AMQ_SCHEDULED_DELAY):[^\n]*\n",
    re.MULTILINE,
)
_PATH = re.compile(rb"^dead-letter-path:[^\n]*\n", re.MULTILINE)
"""One line for each queue that a dead letter has left by itself, since a consumer last refused it."""

_STAYS_BEHIND = re.compile(
    rb"^(?:expires|expiration|ttl|delay|AMQ_SCHEDULED_DELAY"
    rb"|dedup-id|qmq-dedup-id|_AMQ_DUPL_ID|dedup-sender|dedup-retry):[^\n]*\n",
    re.MULTILINE,
)
_SOURCE = re.compile(rb"^dead-letter-from:([^\n]*)\n", re.MULTILINE)
_ESCAPE = re.compile(r"\\[nrc\\]")
_CHARACTERS = {r"\n": "\n", r"\r": "\r", r"\c": ":", "\\\\": "\\"}

Publish = Callable[[Sequence[Envelope], bytes, Outcome, str, Dot | None], int]
"""Accepts messages of this node without asking whether they fit; see `Broker._dead_letter`."""

Route = Callable[[str, str, Mapping[str, str]], tuple[Sequence[str], int]]
"""(exchange, routing key, headers) → the queues that its bindings choose, or those of its alternates; and what that has
cost."""


DEAD_LETTER_OVERHEAD_BYTES: Final = 12288
"""More than a dead letter says of itself, and its record beside it, with the longest names."""

PATH_MAX: Final = 32
"""Queues that a dead letter leaves by itself before it goes to the default dead letter queue; and full queues that drop
a message for the dead letter of another one, each nested in the one before."""


def dead_letter_bytes_of(message: Message) -> int:
    """What the dead letter of `message` takes at most."""
    return len(message.body) + len(message.envelope.headers) + DEAD_LETTER_OVERHEAD_BYTES


class DeadLetters:
    """See the module's opening."""

    def __init__(self, publish: Publish, defaults_of: Callable[[str], Mapping[str, str]], route: Route) -> None:
        self._publish = publish
        self._defaults_of = defaults_of
        self._route = route
        # Queues whose dead letters are being accepted: a dead letter can make a full queue drop another message.
        self._leaving: list[str] = []

    def accept(self, message: Message, reason: str, target: str, out: Outcome) -> int:
        """Put a copy of `message` into the queue `target`, or into those that an exchange leads to (`queues_of`).

        Returns the sequence of the record by which `message` itself is settled; 0: it is the caller's to settle.
        """
        envelope = message.envelope
        path = _path_of(message, reason)
        if _is_by_itself(reason):
            path.insert(0, _path_line(envelope.destination))
        chosen, cost = self._chosen(message, reason, target)
        queues = self._allowed(message, reason, chosen)
        out.cost += cost + len(chosen) + DEAD_LETTER_COST * len(queues)
        headers = b"dead-letter-reason:%b\ndead-letter-from:%b\n%bdead-letter-deliveries:%d\n%b%b%b%b%b" % (
            reason.encode(),
            _escaped(envelope.destination),
            # What never got into its queue has no id.
            b"dead-letter-id:%b\n" % _escaped(message.message_id) if message.sequence else b"",
            max(message.attempts, 0),
            _through_line(message, target),
            _history_line(message, reason),
            b"".join(path),
            share_line(copies_left(envelope.headers), len(queues)),
            _LEFT_OUT.sub(b"", envelope.headers),
        )
        self._leaving.append(envelope.destination)
        try:
            return self._accept(message, queues, headers, out)
        finally:
            self._leaving.pop()

    def queues_of(self, message: Message, reason: str, target: str) -> Sequence[str]:
        """The queues that get a dead letter of `message`.

        `target` is a queue, or an exchange with a routing key: `/exchange/NAME/KEY`. Without key, that counts by which
        the message came: of its exchange, else the name of the queue that it leaves. None if the default dead letter
        queue itself drops what may go nowhere else, or is full of what it leaves.
        """
        return self._allowed(message, reason, self._chosen(message, reason, target)[0])

    def _chosen(self, message: Message, reason: str, target: str) -> tuple[Sequence[str], int]:
        """The queue `target`, or those that the bindings of this exchange choose; and what that has cost."""
        if not target.startswith(PREFIX):
            return (target,), 0
        source = message.envelope.destination
        headers = {**properties_of(message.envelope), "dead-letter-reason": reason, "dead-letter-from": source}
        # These are no headers of the sender.
        del headers["destination"], headers["persistent"]
        name, key = _routing(message, target)
        queues, cost = self._route(name, key, headers)
        return [one for one in queues if one != source], cost

    def _allowed(self, message: Message, reason: str, queues: Sequence[str]) -> Sequence[str]:
        """Those of `queues` to which a dead letter may go, or the default dead letter queue."""
        source = message.envelope.destination
        path = _path_of(message, reason)
        if len(path) >= PATH_MAX or len(self._leaving) >= PATH_MAX:
            queues = ()
        elif self._leaving or path:
            queues = [one for one in queues if one not in self._leaving and _path_line(one) not in path]
        if len(queues) > 1:
            most = min(copies_left(message.envelope.headers), COPIES_BYTES_MAX // dead_letter_bytes_of(message))
            queues = () if len(queues) > most else queues
        if queues:
            return queues
        return () if source == DEAD_LETTERS or DEAD_LETTERS in self._leaving else (DEAD_LETTERS,)

    def dead_letters_bytes_of(self, message: Message, reason: str, target: str) -> int:
        """What the dead letters of `message` take at most."""
        return len(self.queues_of(message, reason, target)) * dead_letter_bytes_of(message)

    def move(
        self,
        message: Message,
        target: str,
        due_us: int,
        expires_us: int,
        out: Outcome,
        *,
        is_redrive: bool,
        lines: bytes = b"",
    ) -> int:
        """Put `message` into the queue `target`, with its headers; returns the same as `accept`.

        It is due at `due_us` and expires at `expires_us`, 0: at once and never. It has these header `lines`, too. A
        redriven message loses what its dead letter said. The dedup id stays behind: with it the copy could count as an
        attempt of the SEND that had the id.
        """
        headers = lines + _STAYS_BEHIND.sub(b"", message.envelope.headers)
        if is_redrive:
            headers = _LEFT_OUT.sub(b"", headers)
        if due_us > out.now_us:
            headers = b"delay:%d\n%b" % ((due_us - out.now_us) // 1000 + 1, headers)
        if expires_us:
            headers = b"expires:%d\n%b" % (expires_us // 1000, headers)
        return self._accept(message, (target,), headers, out)

    def _accept(self, message: Message, queues: Sequence[str], headers: bytes, out: Outcome) -> int:
        envelope = message.envelope
        dead_letters: list[Envelope] = []
        for queue in queues:
            block = headers
            for name, value in self._defaults_of(queue).items():
                line = b"%b:" % name.encode()
                if not block.startswith(line) and b"\n" + line not in block:
                    block += b"%b%b\n" % (line, value.encode())
            dead_letters.append(Envelope(queue, DestinationKind.QUEUE, block, envelope.durable))
        dot = message.dot if message.sequence > 0 else None
        return self._publish(dead_letters, message.body, out, envelope.destination, dot)


def source_of(message: Message) -> str:
    """The queue that a dead letter comes from; "" if `message` is no dead letter of a queue."""
    found = _SOURCE.search(message.envelope.headers)
    return "" if found is None else _ESCAPE.sub(lambda escape: _CHARACTERS[escape[0]], found[1].decode())


def _is_by_itself(reason: str) -> bool:
    """Whether a message leaves its queue for this reason without a consumer."""
    return reason in (EXPIRED, OVERFLOW)


def _routing(message: Message, target: str) -> tuple[str, str]:
    """The exchange that `target` names, and the routing key with which it gets a dead letter of `message`."""
    name, has_key, key = target.removeprefix(PREFIX).partition("/")
    if not has_key:
        exchange, key = came_through(properties_of(message.envelope), message.envelope.destination)
        if not exchange:
            # The name of the queue. In a virtual host, bindings know it without the prefix.
            key = key.removeprefix(prefix_of(name))
    return name, key


def _through_line(message: Message, target: str) -> bytes:
    if not target.startswith(PREFIX):
        return b""
    return b"%b:%b\n" % (THROUGH.encode(), _escaped(f"{PREFIX}{'/'.join(_routing(message, target))}"))


def _history_line(message: Message, reason: str) -> bytes:
    if b"dead-letter-reason:" not in message.envelope.headers:
        return b""
    history = history_after(properties_of(message.envelope), reason, message.envelope.destination)
    return b"" if history is None else b"%b:%b\n" % (HISTORY.encode(), _escaped(history))


def _path_of(message: Message, reason: str) -> list[bytes]:
    """Where it may not return; a consumer that refuses it begins a new path."""
    headers = message.envelope.headers
    return _PATH.findall(headers) if _is_by_itself(reason) and b"dead-letter-path:" in headers else []


def _path_line(queue: str) -> bytes:
    return b"dead-letter-path:%b\n" % _escaped(queue)


def _escaped(text: str) -> bytes:
    """As a STOMP 1.2 header value ("Value Encoding")."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace(":", "\\c")
    return text.encode()
