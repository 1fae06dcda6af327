"""Who may connect: bounds on connections, and on logins under way, of the node and of each address.

A login is under way from accept until CONNECTED. When there is no room for another one, an older one gives its place:
of the address that has the most logins under way the oldest that is still silent, or when all of them wait for their
password check, the newest. So an address that takes all room displaces itself, and never keeps others out. Only
an address that has no fewer than any other is refused.

A host gets a whole /64 of IPv6 to choose its addresses from, so that counts as one; an IPv4 address counts as itself
however it is written.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from ipaddress import IPv6Address, ip_address
from typing import Final

from qmq.broker.subscriptions import stopping
from qmq.config import LimitSettings
from qmq.errors import Refused

IPV6_HOST_BITS: Final = 64


class PendingLogin:
    """One connection. `address` is as it is counted; `is_silent` until it has sent its CONNECT; `is_pending` until
    CONNECTED or its end; `dismiss` ends it at once.
    """

    __slots__ = ("address", "dismiss", "is_pending", "is_silent")

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_silent = True
        self.is_pending = True
        self.dismiss: Callable[[Refused], None] = lambda why: None


class Admission:
    """All connections of one node."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._addresses: Counter[str] = Counter()
        self._pending_addresses: Counter[str] = Counter()
        # In the order of coming.
        self._pending: dict[PendingLogin, None] = {}
        self._total = 0
        self._closed = False
        self.refusing = 0
        """Refused connections that are being told why."""

    @property
    def pending(self) -> int:
        """Logins under way."""
        return len(self._pending)

    def change(self, limits: LimitSettings) -> None:
        """From now on these bounds count. Connections that are there stay."""
        self._limits = limits

    def close(self) -> None:
        """Let no connection in any more: the node is stopping."""
        self._closed = True

    def check_open(self) -> None:
        """Raises Refused while the node ends."""
        if self._closed:
            raise stopping()

    def admit(self, peer_address: str) -> PendingLogin:
        """Count a new connection. May dismiss another login. Raises Refused when there is no room; nothing is counted
        then."""
        self.check_open()
        limits = self._limits
        address = counted_address(peer_address)
        if self._total >= limits.connections_max:
            raise Refused("too-many-connections", f"The node serves at most {limits.connections_max} connections.")
        if self._addresses[address] >= limits.connections_per_address_max:
            raise Refused(
                "too-many-connections", f"One address has at most {limits.connections_per_address_max} connections."
            )
        if self._pending_addresses[address] >= limits.logins_pending_per_address_max:
            most = limits.logins_pending_per_address_max
            self._make_room(
                address,
                (login for login in self._pending if login.address == address),
                f"At most {most} clients of one address may be logging in.",
            )
        if len(self._pending) >= limits.logins_pending_max:
            self._make_room(
                address, iter(self._pending), f"At most {limits.logins_pending_max} clients may be logging in."
            )
        login = PendingLogin(address)
        self._pending[login] = None
        self._pending_addresses[address] += 1
        self._addresses[address] += 1
        self._total += 1
        return login

    def _make_room(self, address: str, others: Iterator[PendingLogin], why: str) -> None:
        """Dismiss one of `others`, which are in the order of coming, for a newcomer from `address`. Raises Refused."""
        counts = self._pending_addresses
        chosen: PendingLogin | None = None
        rank = (0, False)
        for login in others:
            other = (counts[login.address], login.is_silent)
            if other > rank or (other == rank and not login.is_silent):
                chosen, rank = login, other
        if chosen is None or (not chosen.is_silent and rank[0] <= counts[address] + 1):
            raise Refused("too-many-logins", why)
        self.decided(chosen)
        chosen.dismiss(Refused("too-many-logins", f"{why} This one gave its place to another."))

    def decided(self, login: PendingLogin) -> None:
        """The login has succeeded or will not any more. Idempotent."""
        if login.is_pending:
            login.is_pending = False
            del self._pending[login]
            _less(self._pending_addresses, login.address)

    def leave(self, login: PendingLogin) -> None:
        """The connection has ended."""
        self.decided(login)
        _less(self._addresses, login.address)
        self._total -= 1


def counted_address(address: str) -> str:
    """What counts as one address: see above. A name that is no IP address counts as it is."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> IPV6_HOST_BITS << IPV6_HOST_BITS)}/{IPV6_HOST_BITS}"


def _less(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
