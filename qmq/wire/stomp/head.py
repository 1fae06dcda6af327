"""Parsed header blocks.

Most frames of a busy connection repeat the header block of the frame before, so a block is parsed once and its Head
is shared by every frame, of any connection, that carries the same bytes (`cache`). `receipt` and `content-length` are
not part of a Head, because they are what differs between otherwise equal blocks; the reader cuts them out before it
looks there.

Surprising: `memo` belongs to the next layer, which keeps there what it made of the headers (a checked destination, a
packed envelope). It lives and dies with the Head, so it needs no bound of its own.
"""

from qmq.wire.stomp.version import Version


class Head:
    """One parsed header block, shared: treat it as immutable, except for `memo`.

    `headers` are unescaped, in the order sent, the first of repeated ones, without `receipt` and `content-length`.
    `command` is one object per command, so comparing it is cheap. `version` is the one the block was read by: always
    1.0 for CONNECT, STOMP and CONNECTED, whose headers are never unescaped. `form` is what it has in common with
    heads that differ only in their destination, where that is known.
    """

    __slots__ = ("command", "form", "headers", "memo", "version")

    def __init__(self, command: str, headers: dict[str, str], version: Version, form: "Form | None" = None) -> None:
        self.command = command
        self.headers = headers
        self.version = version
        self.form = form
        self.memo: object | None = None

    def __repr__(self) -> str:
        return f"Head({self.command!r}, {self.headers!r}, {self.version.text})"


class Form:
    """What a SEND block says beside its destination; `length` as in CachedBlock."""

    __slots__ = ("_headers", "_version", "length", "memo")

    def __init__(self, headers: dict[str, str], version: Version, length: int) -> None:
        self._headers = headers
        self._version = version
        self.length = length
        self.memo: object | None = None

    def head(self, destination: str) -> Head:
        """The head of a block of this form, with the headers in the order sent."""
        headers = self._headers.copy()
        headers["destination"] = destination
        return Head("SEND", headers, self._version, self)


class CachedBlock:
    """What a header block says: its Head, and the length of the body that follows, -1 when the block has none."""

    __slots__ = ("head", "length")

    def __init__(self, head: Head, length: int) -> None:
        self.head = head
        self.length = length
