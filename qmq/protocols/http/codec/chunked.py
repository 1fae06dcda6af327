"""A chunked body, decoded strictly.

h11 can decode chunks too. It accepts a trailer whose lines end with LF alone, which another server reads differently,
and it has no bound for the number of chunks: a body of chunks of one byte costs a hundred times its size. So trailers
are read as headers are, within a bound, and dropped (RFC 9110, 6.5.1), extensions are short and ignored (RFC 9112,
7.1.1), and small chunks are counted.
"""

import re

from qmq.protocols.http.codec.refusals import bad_request, body_too_large

CHUNK_LINE_BYTES_MAX = 128
"""The size of a chunk and its extension."""

SMALL_CHUNKS_MAX = 256
"""A body may have so many chunks, and one more for each CHUNK_BYTES_MEAN bytes."""

CHUNK_BYTES_MEAN = 16

TRAILER_BYTES_MAX = 8192
"""All trailer lines of a body."""

TRAILER = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*)?\r\n")
"""One line, or the blank one behind the last."""

CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")

DATA_END = b"\r\n"


class ChunkedBody:
    """One body. `held_bytes` have been taken out of the connection's buffer so far."""

    __slots__ = ("_body_bytes_max", "_chunks", "_data_ends", "_ends", "_left", "_parts", "_trailer_bytes", "held_bytes")

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._parts: list[bytes] = []
        self._left = 0
        """Of the chunk that is arriving."""
        self._data_ends = False
        """The CRLF after the data of a chunk comes next."""
        self._ends = False
        """The last chunk was read; trailers come next, and a blank line."""
        self._trailer_bytes = 0
        self._chunks = 0
        self.held_bytes = 0

    def take(self, buffer: bytearray) -> bool:
        """Take what `buffer` has of the body; True when the body is complete. Raises HttpRefusal."""
        at = 0
        try:
            while True:
                if self._left:
                    data = bytes(buffer[at : at + self._left])
                    if not data:
                        return False
                    at += len(data)
                    self._parts.append(data)
                    self.held_bytes += len(data)
                    self._left -= len(data)
                    self._data_ends = not self._left
                elif self._data_ends:
                    end = buffer[at : at + 2]
                    if end != DATA_END[: len(end)]:
                        raise bad_request("a chunk is longer than its size")
                    if len(end) < 2:
                        return False
                    at += 2
                    self._data_ends = False
                elif self._ends:
                    left = TRAILER_BYTES_MAX - self._trailer_bytes
                    end_at = buffer.find(b"\n", at, at + left + 1) + 1
                    if not end_at and len(buffer) - at > left:
                        raise bad_request(f"the trailers have at most {TRAILER_BYTES_MAX} bytes")
                    if not end_at:
                        return False
                    line = bytes(buffer[at:end_at])
                    if TRAILER.fullmatch(line) is None:
                        raise bad_request("a trailer is a name, a colon and a value, and CRLF")
                    self._trailer_bytes += len(line)
                    at = end_at
                    if line == DATA_END:
                        return True
                else:
                    end_at = buffer.find(b"\r", at, at + CHUNK_LINE_BYTES_MAX + 1)
                    if end_at < 0:
                        if len(buffer) - at > CHUNK_LINE_BYTES_MAX:
                            raise bad_request(f"the line of a chunk has at most {CHUNK_LINE_BYTES_MAX} bytes")
                        return False
                    if len(buffer) == end_at + 1:
                        return False
                    self._begin(bytes(buffer[at:end_at]), buffer[end_at + 1])
                    at = end_at + 2
        finally:
            del buffer[:at]

    def _begin(self, line: bytes, after_cr: int) -> None:
        match = CHUNK_LINE.fullmatch(line)
        if match is None or after_cr != 0x0A:
            raise bad_request("the line of a chunk is its size in hexadecimal digits, and CRLF")
        self._left = int(match[1], 16)
        self._ends = not self._left
        if self.held_bytes + self._left > self._body_bytes_max:
            raise body_too_large(self._body_bytes_max)
        self._chunks += 1
        if self._chunks > SMALL_CHUNKS_MAX + self.held_bytes // CHUNK_BYTES_MEAN:
            raise bad_request(
                f"the chunks of the body are too small: more than {SMALL_CHUNKS_MAX} of less than "
                f"{CHUNK_BYTES_MEAN} bytes"
            )

    def bound(self, bytes_max: int) -> None:
        """Lower the bound of the body. Raises HttpRefusal if it has more already."""
        self._body_bytes_max = min(self._body_bytes_max, bytes_max)
        if self.held_bytes + self._left > self._body_bytes_max:
            raise body_too_large(self._body_bytes_max)

    def join(self) -> bytes:
        """The whole body."""
        return b"".join(self._parts)
