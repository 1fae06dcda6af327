"""How much one connection may ask this node to hold before a frame is complete.

Every limit is checked while the bytes arrive, so a frame that will be refused is refused before it is buffered. What
happens then is always the same: the codec reports an error that names the limit, and reads nothing more.
"""

from dataclasses import dataclass

BODY_BYTES_CEILING = 64 * 1024 * 1024
"""No configuration can raise `body_bytes_max` above this: one frame is held in memory as a whole."""


@dataclass(frozen=True)
class Limits:
    """Limits of one connection. Hashable: connections with equal limits share their parsed heads.

    Raises ValueError when a limit could not let any frame through, or `body_bytes_max` is over the ceiling.
    """

    command_bytes_max: int = 32
    """The first line of a frame. The longest command has 11 bytes; the rest lets an error show what was sent."""

    header_line_bytes_max: int = 8192
    """One header line without its LF. Room for the tokens that web gateways put into headers; Apache's value."""

    header_count_max: int = 100
    """Header lines of one frame, repeated ones included. Clients that echo a MESSAGE's headers stay below 40."""

    header_bytes_max: int = 65536
    """Command and header lines together, without the blank line that ends them."""

    body_bytes_max: int = 1_048_576
    """One body. A queue of larger things should carry references to them."""

    login_bytes_max: int = 8192
    """All that a client may send up to the end of its CONNECT frame: it has not logged in yet, so little is held."""

    def __post_init__(self) -> None:
        for name in ("command_bytes_max", "header_line_bytes_max", "header_bytes_max", "login_bytes_max"):
            if getattr(self, name) < 16:
                raise ValueError(f"{name} must be at least 16")
        if self.header_count_max < 1:
            raise ValueError("header_count_max must be at least 1")
        if not 0 <= self.body_bytes_max <= BODY_BYTES_CEILING:
            raise ValueError(f"body_bytes_max must be between 0 and {BODY_BYTES_CEILING}")


DEFAULT_LIMITS = Limits()
