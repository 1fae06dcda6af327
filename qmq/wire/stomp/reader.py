"""Chunks of bytes to frames: the hot path of the broker.

A chunk goes through one loop. A block of headers that was seen before is recognised by its bytes and costs one
dictionary look-up, one that differs in receipt or destination a few searches more; ACK and NACK, which never repeat,
have a fast path of their own; everything else takes the slow path through `grammar`. `Dialogue` decides which commands
may come. Only blocks of commands that change nothing there are remembered, so a remembered block needs no
check.

Surprising: the fast paths decide nothing on their own. Any irregular frame (incomplete, too large, no NUL)
takes the slow path, so every error is found in one place. No byte is searched again because its frame came in many
reads: a frame cut in its head waits in `_partial`, one cut in its body in `_body`. All paths are one class, because
each continues where another left the chunk.
"""

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp.cache import CACHED_BLOCK_BYTES_MAX, HeadCache, HeadCaches
from qmq.wire.stomp.frame_checks import BODY_COMMANDS, FrameChecks, first_line
from qmq.wire.stomp.frames import Acks, Frame
from qmq.wire.stomp.grammar import parse_content_length, parse_headers, parse_receipt, unescape
from qmq.wire.stomp.head import CachedBlock, Head
from qmq.wire.stomp.limits import Limits
from qmq.wire.stomp.partial_frame import PartialBody, PartialHead, check_block
from qmq.wire.stomp.refusals import bad_utf8, missing_nul
from qmq.wire.stomp.runs import HOLE_BYTES_MAX, NO_ACK_RUN, NO_SEND_RUN, learn_ack, learn_send, plain_text
from qmq.wire.stomp.states import Dialogue, Role, State
from qmq.wire.stomp.version import Version

LF = 10
CR = 13
NUL = 0

BEATS_BYTES = 256
"""Heart-beats that are passed over in one step."""

NOT_FOUND = 1 << 62
"""Where the next blank line is when this chunk has none: further than any block that is looked up."""


class Reader:
    """Takes one connection's bytes in order. After read() raised, only failed_receipt() and forget() make sense."""

    __slots__ = (
        "_ack_run",
        "_blank_line",
        "_block",
        "_body",
        "_body_bytes_max",
        "_cache",
        "_caches",
        "_checks",
        "_dialogue",
        "_expects_login",
        "_gathers",
        "_has_gathered",
        "_has_gathered_sends",
        "_head_version",
        "_last_known",
        "_learns",
        "_limits",
        "_lookup_bytes_max",
        "_partial",
        "_received",
        "_send_run",
        "_unchecked_bytes_max",
    )

    def __init__(self, dialogue: Dialogue, limits: Limits, caches: HeadCaches, gathers: bool = False) -> None:
        """`gathers`: ACKs that differ in their number only may come as one `Acks`, alike SENDs as one `Sends`."""
        self._dialogue = dialogue
        self._gathers = gathers
        # Looked for once in a chunk: what has no end of it in sight must not be searched again and again.
        self._has_gathered = self._has_gathered_sends = False
        self._limits = limits
        self._caches = caches
        self._received = 0
        # No look-ups until the version is known, nor on the client's side, where no two heads are equal.
        self._cache, self._lookup_bytes_max = HeadCache(), -1
        self._head_version = Version.V10
        self._expects_login = dialogue.role is Role.SERVER
        self._learns = False
        self._send_run = NO_SEND_RUN
        self._ack_run = NO_ACK_RUN
        self._last_known: CachedBlock | None = None
        # Where in the chunk the next blank line is, or NOT_FOUND; before the position of the reader: not yet known.
        self._blank_line = -1
        # No block up to this size can break a limit, because a header line takes at least two bytes and its LF.
        self._unchecked_bytes_max = min(
            limits.header_line_bytes_max, limits.header_bytes_max, 3 * limits.header_count_max, CACHED_BLOCK_BYTES_MAX
        )
        self._body_bytes_max = limits.body_bytes_max
        self._checks = FrameChecks(dialogue, limits)
        # A frame whose head, or whose body, is incomplete.
        self._partial = PartialHead(limits, dialogue.role)
        self._body = PartialBody(self._checks)
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
        if self._body.head is not None:
            pos = self._continue_body(data, frames)
            if pos < 0:
                return
        elif self._partial:
            chunk = self._partial.extend(data)
        self._blank_line = -1
        self._has_gathered = self._has_gathered_sends = not self._gathers
        while pos < len(chunk):
            pos = self._read_repeated(chunk, pos, frames)
            if pos < len(chunk):
                pos = self._read_frame(chunk, pos, frames)
                if pos < 0:
                    return
        if self._expects_login:
            self._checks.login(self._received + 1)

    @property
    def is_amid_frame(self) -> bool:
        """Whether an incomplete frame is kept."""
        return self._body.head is not None or len(self._partial) > 0

    def failed_receipt(self) -> str | None:
        """The receipt that the present frame requested, as far as it was readable."""
        if self._body.head is not None:
            return self._body.receipt
        # What follows a misplaced NUL may belong to another frame; what follows the last LF of a partial head
        # may be cut.
        block = self._block
        if not block:
            block = self._partial.whole_lines()
        block = block.partition(b"\0")[0]
        at = block.find(b"\nreceipt:")
        if at < 0:
            return None
        try:
            return parse_receipt(first_line(block, at + 9), self._head_version)
        except RemoteProtocolError:
            return None

    @property
    def unfinished_bytes(self) -> int:
        """Kept of a frame whose end has not come."""
        return len(self._body.data) + len(self._partial)

    def forget(self) -> None:
        """Drop all that was buffered."""
        self._partial.clear()
        self._body.clear()
        self._block = b""

    def _read_repeated(self, chunk: bytes, pos: int, frames: list[Frame]) -> int:
        """The fast paths, for as many frames from `pos` on as they fit. Returns where the first other byte is."""
        size = len(chunk)
        known_blocks = self._cache.young
        lead = self._send_run.lead
        lead_bytes = len(lead)
        trail = self._send_run.trail
        ack_lead = self._ack_run.lead
        known: CachedBlock | None = None
        while pos < size:
            receipt: str | None = None
            if chunk.startswith(lead, pos):
                known = self._send_run.known
                body_at = pos + lead_bytes
                if not self._has_gathered_sends:
                    self._has_gathered_sends = True
                    begin, pos = pos, self._send_run.gather(chunk, pos, self._body_bytes_max, frames)
                    if pos > begin:
                        continue
                if trail:
                    hole_end = chunk.find(b"\n", body_at)
                    if not chunk.startswith(trail, hole_end):
                        return pos
                    receipt = plain_text(chunk[body_at:hole_end])
                    if receipt is None or "\\" in receipt:
                        return pos
                    body_at = hole_end + len(trail)
            elif chunk.startswith(ack_lead, pos):
                ack_run = self._ack_run
                if not self._has_gathered and ack_run.between:
                    self._has_gathered = True
                    numbers = ack_run.numbers(chunk, pos)
                    if len(numbers) > 1:
                        frames.append(Acks(ack_run.head, numbers))
                        pos += sum(map(len, numbers)) + len(numbers) * len(ack_run.between)
                        continue
                hole_end = chunk.find(b"\n", pos + len(ack_lead))
                if not chunk.startswith(ack_run.trail, hole_end):
                    return pos
                value = plain_text(chunk[pos + len(ack_lead) : hole_end])
                if value is None:
                    return pos
                like = ack_run.head
                headers = like.headers.copy()
                headers[ack_run.name] = unescape(value, like.version) if "\\" in value else value
                frames.append(Frame(Head(like.command, headers, like.version), b"", None))
                pos = hole_end + len(ack_run.trail)
                continue
            else:
                first = chunk[pos]
                if first == LF or first == CR:
                    pos += 1
                    if pos < size and chunk[pos] == LF:
                        # No client needs so many, but 64 KiB of them must not cost more than as many bytes of frames.
                        beats = chunk[pos : pos + BEATS_BYTES]
                        pos += len(beats) - len(beats.lstrip(b"\r\n"))
                    continue
                if self._blank_line < pos:
                    self._find_blank_line(chunk, pos)
                blank_line = self._blank_line
                if blank_line - pos > self._lookup_bytes_max:
                    return pos
                before = known
                block = chunk[pos:blank_line]
                known = known_blocks.get(block)
                if known is None:
                    if not self._learns:
                        return pos
                    known, receipt = self._read_alike(block)
                    if known is None:
                        return pos
                    known_blocks = self._cache.young
                body_at = blank_line + 2
                if known is before and self._learns and pos > 0:
                    # The second of its kind: the third will be compared.
                    self._send_run = learn_send(chunk, pos, body_at, known, receipt is not None)
                    lead = self._send_run.lead
                    lead_bytes = len(lead)
                    trail = self._send_run.trail
            if known.length >= 0:
                stop = body_at + known.length
                if stop >= size or chunk[stop] != NUL:
                    return pos
            else:
                stop = chunk.find(b"\0", body_at)
                if stop < 0 or stop > body_at + self._body_bytes_max:
                    return pos
            frames.append(Frame(known.head, chunk[body_at:stop], receipt))
            pos = stop + 1
        return pos

    def _read_alike(self, block: bytes) -> tuple[CachedBlock | None, str | None]:
        """What a block says that differs from a known one in its receipt and its destination, and its receipt.

        (None, None) for all others. They may not break a limit either, so only what needs no look at them is read here.
        """
        if len(block) > self._unchecked_bytes_max:
            return None, None
        cache = self._cache
        receipt: str | None = None
        at = block.find(b"\nreceipt:")
        if at >= 0:
            end = block.find(b"\n", at + 9)
            if end < 0:
                end = len(block)
            receipt = plain_text(block[at + 9 : end])
            if receipt is None or "\\" in receipt:
                return None, None
            block = block[:at] + block[end:]
        known = cache.get(block)
        if known is None:
            known = cache.forms.read(block)
            if known is None:
                return None, None
            cache.put(block, known)
        return known, receipt

    def _find_blank_line(self, chunk: bytes, pos: int) -> None:
        """Searched once: it stays valid for all frames before it, which end their heads with CRLF."""
        found = chunk.find(b"\n\n", pos)
        self._blank_line = NOT_FOUND if found < 0 else found

    def _read_frame(self, chunk: bytes, pos: int, frames: list[Frame]) -> int:
        """The slow path for the frame at `pos`. Returns where the next one starts; -1 when this one is kept."""
        size = len(chunk)
        while chunk[pos] == LF or chunk[pos] == CR:
            pos += 1
            if pos == size:
                return pos
        if self._blank_line < pos:
            self._find_blank_line(chunk, pos)
        end = chunk.find(b"\n\r\n", pos, min(self._blank_line + 1, size))
        if end >= 0:
            body_at = end + 3
        elif self._blank_line < size:
            end = self._blank_line
            body_at = end + 2
        else:
            self._partial.keep(chunk[pos:])
            if self._expects_login:
                self._checks.login(self._received + 1)
            return -1

        block = chunk[pos:end]
        self._block = block
        if len(block) > self._unchecked_bytes_max or block.find(b"\0") >= 0:
            self._checks.command(block)
            check_block(block, self._limits)
        receipt: str | None = None
        known = self._cache.get(block)
        if known is None:
            stripped = block
            at = block.find(b"\nreceipt:")
            if at >= 0:
                raw = first_line(block, at + 9)
                receipt = parse_receipt(raw, self._head_version)
                stripped = block[:at] + block[at + 9 + len(raw) :]
                known = self._cache.get(stripped)
            if known is None:
                known = self._parse(stripped)
        head = known.head
        length = known.length

        if length >= 0:
            stop = body_at + length
            self._checks.body(head.command, length)
            if stop < size and chunk[stop] != NUL:
                raise missing_nul(length)
        else:
            stop = chunk.find(b"\0", body_at)
            if stop < 0:
                stop = size
            self._checks.undeclared(head.command, 0, chunk, body_at, stop)
        if self._expects_login:
            self._checks.login(self._received - size + stop + 1)
        if stop >= size:
            self._body.keep(head, receipt, length, chunk[body_at:])
            return -1
        self._finish(head, chunk[body_at:stop], receipt, frames)
        # Not from the first frame of a chunk: whether the client sends LF after NUL is not seen there.
        if self._learns and 0 < pos and body_at - pos <= CACHED_BLOCK_BYTES_MAX:
            if known is self._last_known:
                self._send_run = learn_send(chunk, pos, body_at, known, receipt is not None)
            elif receipt is None and (head.command == "ACK" or head.command == "NACK"):
                self._ack_run = learn_ack(chunk, pos, body_at, head)
        # Of others nothing is learnt, and a CONNECT would be kept as long as its client is silent.
        self._last_known = known if head.command == "SEND" else None
        return stop + 1

    def _parse(self, stripped: bytes) -> CachedBlock:
        """What the block `stripped`, its receipt line cut out, says; remembered when it may come again."""
        cache = self._cache
        length = -1
        stem = stripped
        at = stripped.find(b"\ncontent-length:")
        if at >= 0:
            raw = first_line(stripped, at + 16)
            length = parse_content_length(raw.removesuffix(b"\r"))
            stem = stripped[:at] + stripped[at + 16 + len(raw) :]
            known = cache.get(stem)
            if known is not None:
                known = CachedBlock(known.head, length)
                self._remember(stripped, known)
                return known
        version = self._head_version
        # Where heads are looked up at all, SEND may come; the dialogue checks the others.
        command = "SEND" if self._lookup_bytes_max > 0 and stem.startswith(b"SEND\n") else self._checks.command(stem)
        try:
            text = stem.decode()
        except UnicodeDecodeError:
            raise bad_utf8() from None
        head = Head(command, parse_headers(text, version), version)
        # Of repeated headers only the first was cut out, and a remembered block must mean the same on its own.
        if command == "SEND" and "\nreceipt:" not in text and "\ncontent-length:" not in text:
            self._remember(stem, CachedBlock(head, -1))
            known = CachedBlock(head, length)
            if self._learns and len(stripped) <= self._lookup_bytes_max and length <= self._limits.body_bytes_max:
                cache.forms.learn(stripped, known)
            return known
        return CachedBlock(head, length)

    def _remember(self, block: bytes, known: CachedBlock) -> None:
        if len(block) <= self._lookup_bytes_max and known.length <= self._limits.body_bytes_max:
            self._cache.put(block, known)

    def _finish(self, head: Head, body: bytes, receipt: str | None, frames: list[Frame]) -> None:
        """Hand over a complete frame and follow the dialogue."""
        if self._dialogue.advance(head):
            self._follow(self._dialogue)
        self._block = b""
        frames.append(Frame(head, body if head.command in BODY_COMMANDS else b"", receipt))

    def _follow(self, dialogue: Dialogue) -> None:
        """After a move of the dialogue: only an open server meets blocks that it has seen before."""
        limits = self._limits
        self._head_version = dialogue.version
        self._expects_login = False
        if dialogue.role is Role.SERVER and dialogue.state is State.OPEN:
            self._cache = self._caches.cache(dialogue.version, limits)
            self._lookup_bytes_max = min(CACHED_BLOCK_BYTES_MAX, limits.header_bytes_max)
            # A run checks no header limits, so it may only exist where no run can break them.
            smallest = min(limits.header_line_bytes_max, limits.header_bytes_max)
            self._learns = smallest >= CACHED_BLOCK_BYTES_MAX + HOLE_BYTES_MAX
        else:
            self._cache = HeadCache()
            self._lookup_bytes_max = -1
            self._learns = False
            self._send_run = NO_SEND_RUN
            self._ack_run = NO_ACK_RUN

    def _continue_body(self, data: bytes, frames: list[Frame]) -> int:
        """More of the body in hand. Returns where the next frame starts in `data`; -1 when there is still more."""
        body = self._body
        stop = body.end_in(data)
        if self._expects_login:
            self._checks.login(self._received - len(data) + stop + 1)
        body.data += data[:stop]
        if stop >= len(data):
            return -1
        assert body.head is not None
        self._finish(body.head, bytes(body.data), body.receipt, frames)
        body.clear()
        return stop + 1
