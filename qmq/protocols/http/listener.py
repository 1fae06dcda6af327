"""`[[http]]` in the node file: which names the web port has, and pages of which origins may use it."""

import re
from typing import Annotated, Final

from qmq.address import Address
from qmq.protocols.declaration import Declaration, ListenerSettings

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


def _check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        if not re.fullmatch(r"https?://[^/?#@\s]+", origin):
            raise ValueError(f"must have origins as https://HOST[:PORT], not {origin!r}")
    return origins


Origins = Annotated[tuple[str, ...], _check_origins]


class HttpListenerSettings(ListenerSettings):
    """One `[[http]]`: an address of the web port. `hosts` are names of it besides its address."""

    hosts: tuple[str, ...] = ()
    origins: Origins = ()
    """Origins of pages that may use the port, besides pages of the port itself: `https://app.example.org`."""

    def served_hosts(self, is_anonymous: bool) -> tuple[str, ...] | None:
        """The names in `Host` that are served; None for all, where each client logs in and no names are given."""
        if not is_anonymous and not self.hosts:
            return None
        return (*self.hosts, self.address.host, *(LOOPBACK_NAMES if self.address.is_loopback else ()))


PULL_ACKS: Final = "pull-acks"
"""A request of one node to another: settle or extend deliveries that an HTTP client has received there."""

DECLARATION: Final = Declaration(
    "http",
    "HTTP",
    HttpListenerSettings,
    default=Address("127.0.0.1", 61680),
    of_mesh={"origins": Origins},
    page="console",
    requests=(PULL_ACKS,),
)
