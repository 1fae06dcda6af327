"""How much one HTTP connection may ask this node to hold. Every limit is checked while the bytes arrive."""

from dataclasses import dataclass

HTTP_BODY_BYTES_CEILING = 64 * 1024 * 1024
"""No caller can raise `body_bytes_max` above this: a body is held in memory as a whole."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one connection. Raises ValueError when a limit could not let any request through."""

    target_bytes_max: int = 8192
    """The request target, with its query. Proxies and browsers allow about as much. Beyond it: 414."""

    head_bytes_max: int = 32768
    """Request line and header lines, with the blank line. Room for a large token and cookies. Beyond it: 431."""

    header_count_max: int = 100
    """Header lines of one request. Browsers behind two proxies send fewer than 40. Beyond it: 431."""

    body_bytes_max: int = 16 * 1024 * 1024
    """One body, after chunks are joined: the largest batch of messages. Beyond it: 413."""

    unread_bytes_max: int = 65536
    """Pipelined bytes that wait while a request is answered. With so many, nothing more may be received."""

    def __post_init__(self) -> None:
        if self.target_bytes_max < 1 or self.header_count_max < 1 or self.unread_bytes_max < 1:
            raise ValueError("target_bytes_max, header_count_max and unread_bytes_max must be at least 1")
        if self.head_bytes_max < 64:
            raise ValueError("head_bytes_max must be at least 64")
        if not 0 <= self.body_bytes_max <= HTTP_BODY_BYTES_CEILING:
            raise ValueError(f"body_bytes_max must be between 0 and {HTTP_BODY_BYTES_CEILING}")
