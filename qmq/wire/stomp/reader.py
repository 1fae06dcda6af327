"""Chunks of bytes to frames: the hot path of the broker.

A chunk goes through one loop. A block of headers that was seen before is recognised by its bytes and costs one
dictionary look-up; ACK and NACK, which never repeat, have a short lane of their own; everything else takes the long
way through `grammar`. Which commands may come is asked of `Dialogue`; only blocks of commands that change nothing
there are remembered, so a remembered block needs no question.

Surprising: the short ways decide nothing on their own. Whatever is odd about a frame (incomplete, too large, no NUL)
sends it the long way, so every error is found in one place. No byte is searched again because its frame came in many
reads: a frame cut in its head waits in `_partial`, one cut in its body in `_body`.
"""

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp.frames import Frame
from qmq.wire.stomp.grammar import (
    bad_utf8,
    missing_nul,
    nul_in_headers,
    parse_content_length,
    parse_headers,
    parse_receipt,
    too_large,
)
from qmq.wire.stomp.head import CACHED_BLOCK_BYTES_MAX, CachedBlock, Head, HeadCache, HeadCaches
from qmq.wire.stomp.limits import Limits
from qmq.wire.stomp.states import Dialogue, Role, State, unknown_command
from qmq.wire.stomp.version import Version

LF = 10
CR = 13
LETTER_S = 83
NUL = 0

NOT_FOUND = 1 << 62
"""Where the next blank line is when this chunk has none: further than any block that is looked up."""

BODY_COMMANDS = frozenset({"SEND", "MESSAGE", "ERROR"})
"""STOMP 1.2, "Body": only these may have one."""

INTERNED: dict[bytes, str] = {
    name.encode(): name
    for name in (
        "CONNECT", "STOMP", "SEND", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "BEGIN", "COMMIT", "ABORT",
        "DISCONNECT", "CONNECTED", "MESSAGE", "RECEIPT", "ERROR",
    )
}  # fmt: skip
"""One string object per command, shared by all heads."""


class Reader:
    """Takes one connection's bytes in order. After read() raised, only failed_receipt() and forget() make sense."""

    __slots__ = (
        "_block",
        "_body",
        "_body_bytes_max",
        "_cache",
        "_caches",
        "_dialogue",
        "_head",
        "_head_version",
        "_length",
        "_limits",
        "_lines",
        "_lookup_bytes_max",
        "_partial",
        "_receipt",
        "_received",
        "_searched",
        "_unchecked_bytes_max",
    )

    def __init__(self, dialogue: Dialogue, limits: Limits, caches: HeadCaches) -> None:
        self._dialogue = dialogue
        self._limits = limits
        self._caches = caches
        self._received = 0
        # No look-ups until the version is known, and none on the client's side, where no two heads are equal.
        self._cache = HeadCache()
        self._lookup_bytes_max = -1
        self._head_version = Version.V10
        # No block up to this size can break a limit, because a header line takes at least two bytes and its LF.
        self._unchecked_bytes_max = min(
            limits.header_line_bytes_max, limits.header_bytes_max, 3 * limits.header_count_max, CACHED_BLOCK_BYTES_MAX
        )
        # A frame whose head is incomplete: its bytes, how many of them were searched, and the LFs among those.
        self._partial = bytearray()
        self._searched = 0
        self._lines = 0
        # A frame whose body is incomplete: what is known of it. `_length` is -1 when NUL ends the body.
        self._head: Head | None = None
        self._receipt: str | None = None
        self._length = -1
        self._body = bytearray()
        self._body_bytes_max = limits.body_bytes_max
        # The header block in hand, for failed_receipt().
        self._block = b""

    def read(self, data: bytes, frames: list[Frame]) -> None:
        """Append every frame that `data` completes to `frames`.

        Raises:
            RemoteProtocolError: the frames before the offending one were appended.
        """
        self._received += len(data)
        chunk = data
        pos = 0
        if self._head is not None:
            pos = self._continue_body(data, frames)
            if pos < 0:
                return
        elif self._partial:
            chunk = self._continue_head(data)
        size = len(chunk)
        known_blocks = self._cache.young
        lookup_bytes_max = self._lookup_bytes_max
        blank_line = -1
        while pos < size:
            first = chunk[pos]
            if first == LF or first == CR:
                pos += 1
                continue
            # Searched once: it stays valid for all frames before it, which end their heads with CRLF.
            if blank_line < pos:
                blank_line = chunk.find(b"\n\n", pos)
                if blank_line < 0:
                    blank_line = NOT_FOUND
            if blank_line - pos <= lookup_bytes_max:
                block = chunk[pos:blank_line]
                known = known_blocks.get(block)
                if known is not None:
                    body_at = blank_line + 2
                    if known.length >= 0:
                        stop = body_at + known.length
                        whole = stop < size and chunk[stop] == NUL
                    else:
                        stop = chunk.find(b"\0", body_at)
                        whole = 0 <= stop <= body_at + self._body_bytes_max
                    if whole:
                        frames.append(Frame(known.head, chunk[body_at:stop], None))
                        pos = stop + 1
                        continue
            pos = self._read_frame(chunk, pos, blank_line, frames)
            if pos < 0:
                return
            known_blocks = self._cache.young
            lookup_bytes_max = self._lookup_bytes_max
        self._check_login(self._received + 1)

    def failed_receipt(self) -> str | None:
        """The receipt that the frame in hand asked for, as far as it was readable."""
        if self._head is not None:
            return self._receipt
        # What follows a misplaced NUL may belong to another frame; what follows the last LF of a partial head
        # may be cut.
        block = self._block
        if not block:
            block = bytes(self._partial[: self._partial.rfind(b"\n") + 1])
        block = block.partition(b"\0")[0]
        at = block.find(b"\nreceipt:")
        if at < 0:
            return None
        try:
            return parse_receipt(first_line(block, at + 9), self._head_version)
        except RemoteProtocolError:
            return None

    def forget(self) -> None:
        """Let go of all that was buffered."""
        self._partial = bytearray()
        self._body = bytearray()
        self._block = b""

    def _read_frame(self, chunk: bytes, pos: int, blank_line: int, frames: list[Frame]) -> int:
        """The long way for the frame at `pos`. Returns where the next one starts; -1 when this one is kept."""
        size = len(chunk)
        end = chunk.find(b"\n\r\n", pos, min(blank_line + 1, size))
        if end >= 0:
            body_at = end + 3
        elif blank_line < size:
            end = blank_line
            body_at = blank_line + 2
        else:
            self._partial += chunk[pos:]
            self._check_partial()
            return -1

        block = chunk[pos:end]
        self._block = block
        if len(block) > self._unchecked_bytes_max or b"\0" in block:
            self._check_block(block)
        receipt: str | None = None
        known = self._cache.get(block)
        if known is None:
            rest = block
            at = rest.find(b"\nreceipt:")
            if at >= 0:
                raw = first_line(rest, at + 9)
                receipt = parse_receipt(raw.removesuffix(b"\r"), self._head_version)
                rest = rest[:at] + rest[at + 9 + len(raw) :]
                known = self._cache.get(rest)
            if known is None:
                known = self._parse(rest)
        head = known.head
        length = known.length

        self._check_body_length(head.command, length)
        if length >= 0:
            stop = body_at + length
            self._check_login(self._received - size + stop + 1)
            if stop < size and chunk[stop] != NUL:
                raise missing_nul(length)
        else:
            stop = chunk.find(b"\0", body_at)
            if stop < 0:
                stop = size
            self._check_body(head.command, stop - body_at)
            self._check_login(self._received - size + stop + 1)
        if stop >= size:
            self._head = head
            self._receipt = receipt
            self._length = length
            self._body += chunk[body_at:]
            return -1
        self._finish(head, chunk[body_at:stop], receipt, frames)
        return stop + 1

    def _parse(self, rest: bytes) -> CachedBlock:
        """What the block `rest`, its receipt line cut out, says; remembered when it may come again."""
        cache = self._cache
        length = -1
        stem = rest
        at = rest.find(b"\ncontent-length:")
        if at >= 0:
            raw = first_line(rest, at + 16)
            length = parse_content_length(raw.removesuffix(b"\r"))
            stem = rest[:at] + rest[at + 16 + len(raw) :]
            known = cache.get(stem)
            if known is not None:
                known = CachedBlock(known.head, length)
                self._remember(rest, known)
                return known
        command = self._check_command(stem)
        try:
            text = stem.decode()
        except UnicodeDecodeError:
            raise bad_utf8() from None
        head = Head(command, parse_headers(text, self._head_version), self._head_version)
        known = CachedBlock(head, length)
        # Of repeated headers only the first was cut out, and a remembered block must mean the same on its own.
        if command == "SEND" and b"\nreceipt:" not in stem and b"\ncontent-length:" not in stem:
            self._remember(rest, known)
            if length >= 0:
                self._remember(stem, CachedBlock(head, -1))
        return known

    def _remember(self, block: bytes, known: CachedBlock) -> None:
        if len(block) <= self._lookup_bytes_max and known.length <= self._limits.body_bytes_max:
            self._cache.put(block, known)

    def _finish(self, head: Head, body: bytes, receipt: str | None, frames: list[Frame]) -> None:
        """Hand over a complete frame and follow the dialogue."""
        dialogue = self._dialogue
        if head.command != "SEND":
            before = dialogue.state
            dialogue.advance(head)
            if dialogue.state is not before:
                self._follow(dialogue)
        self._block = b""
        frames.append(Frame(head, body, receipt))

    def _follow(self, dialogue: Dialogue) -> None:
        self._head_version = dialogue.version
        if dialogue.role is Role.SERVER and dialogue.state is State.OPEN:
            self._cache = self._caches.cache(dialogue.version, self._limits)
            self._lookup_bytes_max = min(CACHED_BLOCK_BYTES_MAX, self._limits.header_bytes_max)
        else:
            self._cache = HeadCache()
            self._lookup_bytes_max = -1

    def _continue_body(self, data: bytes, frames: list[Frame]) -> int:
        """More of the body in hand. Returns where the next frame starts in `data`; -1 when there is still more."""
        head = self._head
        assert head is not None
        if self._length >= 0:
            stop = self._length - len(self._body)
            if stop < len(data) and data[stop] != NUL:
                raise missing_nul(self._length)
        else:
            stop = data.find(b"\0")
            if stop < 0:
                stop = len(data)
            self._check_body(head.command, len(self._body) + stop)
            self._check_login(self._received - len(data) + stop + 1)
        self._body += data[:stop]
        if stop >= len(data):
            return -1
        self._finish(head, bytes(self._body), self._receipt, frames)
        self._head = None
        self._receipt = None
        self._body = bytearray()
        return stop + 1

    def _continue_head(self, data: bytes) -> bytes:
        """More of the head in hand: all its bytes when that is worth a new look, else nothing."""
        partial = self._partial
        # At least twice the bytes of the last look: looking at them all again costs no more than they did.
        worth_a_look = len(data) >= len(partial)
        partial += data
        if not worth_a_look:
            start = max(0, self._searched - 2)
            worth_a_look = partial.find(b"\n\n", start) >= 0 or partial.find(b"\n\r\n", start) >= 0
        if not worth_a_look:
            self._check_partial()
            return b""
        self._partial = bytearray()
        self._searched = 0
        self._lines = 0
        return bytes(partial)

    def _check_partial(self) -> None:
        """Refuse an incomplete head as soon as no more bytes could make it right."""
        partial = self._partial
        limits = self._limits
        searched = self._searched
        if self._lines == 0:
            self._check_partial_command(first_line(bytes(partial), 0).removesuffix(b"\r"))
        if partial.find(b"\0", searched) >= 0:
            raise nul_in_headers()
        self._lines += partial.count(b"\n", searched)
        self._searched = len(partial)
        if self._lines - 1 > limits.header_count_max:
            raise too_large("too-many-headers", "header_count_max", limits.header_count_max)
        if len(partial) - partial.rfind(b"\n") - 1 > limits.header_line_bytes_max:
            raise too_large("header-line-too-long", "header_line_bytes_max", limits.header_line_bytes_max)
        # Two bytes may be the beginning of the blank line.
        if len(partial) > limits.header_bytes_max + 2:
            raise too_large("headers-too-large", "header_bytes_max", limits.header_bytes_max)
        self._check_login(self._received + 1)

    def _check_partial_command(self, line: bytes) -> None:
        """Refuse at once what is no STOMP at all, such as HTTP or a TLS handshake, which may never end its headers.

        A mere unknown command waits for the end of its head, because its sender may have asked for a receipt.
        """
        if (line and not line.isalpha()) or len(line) > self._limits.command_bytes_max:
            raise unknown_command(line.decode("utf-8", "backslashreplace"), self._dialogue.role)

    def _check_command(self, block: bytes) -> str:
        """The command that `block` begins with, if it may come now."""
        line = first_line(block, 0).removesuffix(b"\r")
        command = INTERNED.get(line)
        if command is None or len(line) > self._limits.command_bytes_max:
            raise unknown_command(line.decode("utf-8", "backslashreplace"), self._dialogue.role)
        self._dialogue.check(command)
        return command

    def _check_block(self, block: bytes) -> None:
        """The limits of a whole header block, and that its NUL is not missing a blank line before it."""
        limits = self._limits
        self._check_command(block)
        if b"\0" in block:
            raise nul_in_headers()
        if block.count(b"\n") > limits.header_count_max:
            raise too_large("too-many-headers", "header_count_max", limits.header_count_max)
        if max(map(len, block.split(b"\n"))) > limits.header_line_bytes_max:
            raise too_large("header-line-too-long", "header_line_bytes_max", limits.header_line_bytes_max)
        if len(block) > limits.header_bytes_max:
            raise too_large("headers-too-large", "header_bytes_max", limits.header_bytes_max)

    def _check_body_length(self, command: str, length: int) -> None:
        """Refuse a declared length before anything is kept for it."""
        if length > 0:
            self._check_body(command, length)

    def _check_body(self, command: str, size: int) -> None:
        if size > 0 and command not in BODY_COMMANDS:
            raise RemoteProtocolError(
                "body-not-allowed", f"{command} has no body", "Only SEND, MESSAGE and ERROR may have a body."
            )
        if size > self._limits.body_bytes_max:
            raise too_large("body-too-large", "body_bytes_max", self._limits.body_bytes_max)

    def _check_login(self, end: int) -> None:
        """Refuse a login whose CONNECT frame ends at byte `end` of the stream, or not before it."""
        dialogue = self._dialogue
        if dialogue.state is State.EXPECT_CONNECT and dialogue.role is Role.SERVER:
            if end > self._limits.login_bytes_max:
                raise too_large("login-too-large", "login_bytes_max", self._limits.login_bytes_max)


def first_line(block: bytes, start: int) -> bytes:
    """From `start` up to the end of that line, without its LF."""
    end = block.find(b"\n", start)
    return block[start:] if end < 0 else block[start:end]
