"""What the next frame most probably begins with.

A busy connection repeats itself: the same header block again and again, or the same block but for one value that
counts up (the receipt of a SEND, the id of an ACK). A run is the last such beginning, kept as the bytes around the
value that changes, so the reader can compare instead of search. A run that does not fit costs one comparison; a run
that fits must give exactly the result of a full parse of the same bytes.
"""

from itertools import chain, takewhile
from struct import iter_unpack

from qmq.wire.stomp.frames import Frame, Sends
from qmq.wire.stomp.head import CachedBlock, Head
from qmq.wire.stomp.version import Version

HOLE_BYTES_MAX = 128
"""Longer values in the hole of a run take the slow path, which checks the limits."""

ACK_HEADERS_MAX = 3
"""The value that counts up, the subscription, and one that the client library adds to every frame."""

PLAIN_ACK_HEADERS = frozenset(("id", "subscription"))
"""An ACK with these alone says nothing but its id."""

NUMBER_DIGITS_MAX = 18
"""Longer ids name nothing, and are refused one by one."""

ASKING_MIN = 6
"""Fewer SENDs that ask for receipts are read sooner one by one."""

LF = 10


NEVER = b"\0\0"
"""No valid frame begins like this: the lead of a run that was not learned yet. A client may still send it, so the
other fields of such a run send these bytes to the slow path too, which refuses them."""

ENDLESS = 1 << 62
"""Length of a body that is in no chunk."""


class SendRun:
    """A SEND: `lead`, then either the body, or (with `trail`) a receipt's value, `trail`, and the body.

    `between` stands between the body of one and what follows the lead of the next.
    """

    __slots__ = ("between", "known", "lead", "trail")

    def __init__(self, lead: bytes, trail: bytes, known: CachedBlock) -> None:
        self.lead = lead
        self.trail = trail
        self.known = known
        self.between = b"\0" + lead

    def gather(self, chunk: bytes, pos: int, bytes_max: int, frames: list[Frame]) -> int:
        """Append those at `pos` that can be taken together to `frames`; returns where the next frame begins."""
        at = pos
        for _ in range(ASKING_MIN if self.trail else 0):
            at = chunk.find(self.between, at + 1)
            if at < 0:
                return pos
        raw, bodies = self.asking(chunk, pos, bytes_max) if self.trail else ([], self.bodies(chunk, pos, bytes_max))
        receipts = plain_texts(raw)
        if len(bodies) < 2 or receipts is None:
            return pos
        frames.append(Sends(self.known.head, bodies, receipts))
        around = len(bodies) * (len(self.between) + len(self.trail))
        return pos + sum(map(len, raw)) + sum(map(len, bodies)) + around

    def bodies(self, chunk: bytes, pos: int, bytes_max: int) -> list[bytes]:
        """The bodies of those that stand at `pos` one after the other, but for the last; up to one that is irregular.

        Each ends where a parse of its frame finds the end: behind its declared length, or at its first NUL.
        """
        between = self.between
        tail = chunk[pos + len(self.lead) :]
        length = self.known.length
        if length < 0:
            bodies = tail.split(between)
            bodies.pop()
            return list(takewhile(lambda body: 0 not in body and len(body) <= bytes_max, bodies))
        step = length + len(between)
        rows = tail[: len(tail) // step * step]
        if not rows:
            return []
        # As if all were regular; what joins to the same bytes is.
        bodies = list(chain.from_iterable(iter_unpack(b"%ds%dx" % (length, len(between)), rows)))
        if rows.endswith(between) and rows.startswith(between.join(bodies)):
            return bodies
        ends = range(length, len(rows), step)
        return bodies[: sum(1 for _ in takewhile(lambda end: rows.startswith(between, end), ends))]

    def asking(self, chunk: bytes, pos: int, bytes_max: int) -> tuple[list[bytes], list[bytes]]:
        """As `bodies`, where each asks for a receipt: the receipts, and the bodies.

        With a declared length, none if one is irregular, or its receipt is not as long as the first one.
        """
        between, trail, length = self.between, self.trail, self.known.length
        tail = chunk[pos + len(self.lead) :]
        if length < 0:
            parts = [row.partition(trail) for row in tail.split(between)[:-1]]
            regular = list(takewhile(lambda part: _is_regular(*part, bytes_max), parts))
            return [part[0] for part in regular], [part[2] for part in regular]
        width = tail.find(b"\n")
        step = width + len(trail) + length + len(between)
        rows = tail[: len(tail) // step * step]
        if not rows or not 0 <= width <= HOLE_BYTES_MAX:
            return [], []
        # As if all were regular; what joins to the same bytes is.
        form = b"%ds%dx%ds%dx" % (width, len(trail), length, len(between))
        joined = [trail] * (len(rows) // step * 4)
        joined[::2] = chain.from_iterable(iter_unpack(form, rows))
        joined[3::4] = [between] * (len(joined) // 4)
        return (joined[::4], joined[2::4]) if b"".join(joined) == rows else ([], [])


class AckRun:
    """An ACK or NACK without receipt: `lead`, the value of the header `name`, and `trail`, which ends with NUL.

    `between` stands between the numbers of two that follow each other; b"" where each must be looked at by itself.
    """

    __slots__ = ("between", "head", "lead", "name", "trail")

    def __init__(self, lead: bytes, trail: bytes, name: str, head: Head) -> None:
        self.lead = lead
        self.trail = trail
        self.name = name
        self.head = head
        is_plain = name == "id" and head.command == "ACK" and PLAIN_ACK_HEADERS.issuperset(head.headers)
        self.between = trail + lead if is_plain and head.version == Version.V12 else b""

    def numbers(self, chunk: bytes, pos: int) -> list[bytes]:
        """The ids, all of digits, of those that stand at `pos` one after the other, but for the last."""
        ids = chunk[pos + len(self.lead) :].split(self.between)
        ids.pop()
        if b"".join(ids).isdigit() and min(map(len, ids)) and max(map(len, ids)) <= NUMBER_DIGITS_MAX:
            return ids
        for count, number in enumerate(ids):
            if not number.isdigit() or len(number) > NUMBER_DIGITS_MAX:
                return ids[:count]
        return ids


NO_SEND_RUN = SendRun(NEVER, b"", CachedBlock(Head("SEND", {}, Version.V10), ENDLESS))
# The trail is compared where the LF after the value is, so one that begins with NUL is never there.
NO_ACK_RUN = AckRun(NEVER, NEVER, "id", Head("ACK", {}, Version.V10))


def learn_send(chunk: bytes, start: int, body_at: int, known: CachedBlock, has_receipt: bool) -> SendRun:
    """The run that the SEND just read begins: its head is `chunk[start:body_at]`."""
    run_start = with_line_feed(chunk, start)
    if not has_receipt:
        return SendRun(chunk[run_start:body_at], b"", known)
    hole = chunk.find(b"\nreceipt:", start) + 9
    return SendRun(chunk[run_start:hole], chunk[chunk.find(b"\n", hole) : body_at], known)


def learn_ack(chunk: bytes, start: int, body_at: int, head: Head) -> AckRun:
    """The run that the ACK or NACK just read begins: its head is `chunk[start:body_at]`, its body is empty.

    None begins when more than one value counts up: a client that sends both `id` and `message-id`, or echoes the
    headers of the MESSAGE.
    """
    name = "id" if "id" in head.headers else "message-id"
    line = chunk.find(f"\n{name}:".encode(), start, body_at)
    if line < 0 or len(head.headers) > ACK_HEADERS_MAX or (name == "id" and "message-id" in head.headers):
        return NO_ACK_RUN
    hole = line + len(name) + 2
    trail = chunk[chunk.find(b"\n", hole) : body_at] + b"\0"
    return AckRun(chunk[with_line_feed(chunk, start) : hole], trail, name, head)


def with_line_feed(chunk: bytes, start: int) -> int:
    """A client that sends an LF after one NUL sends it after each, so it is compared with the head that follows."""
    return start - 1 if start > 0 and chunk[start - 1] == LF else start


def plain_texts(raw: list[bytes]) -> list[str] | None:
    """As `plain_text` for each of several short ones, if none has an escape."""
    text = plain_text(b"".join(raw), ENDLESS)
    return None if text is None or "\\" in text else b"\n".join(raw).decode().split("\n") if raw else []


def plain_text(raw: bytes, bytes_max: int = HOLE_BYTES_MAX) -> str | None:
    """`raw` as text when it is short printable ASCII, which is right in every version but for escapes."""
    if len(raw) <= bytes_max and raw.isascii():
        text = raw.decode()
        if text.isprintable():
            return text
    return None


def _is_regular(receipt: bytes, trail: bytes, body: bytes, bytes_max: int) -> bool:
    return bool(trail) and len(receipt) <= HOLE_BYTES_MAX and 0 not in body and len(body) <= bytes_max
